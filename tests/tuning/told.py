"""What a trial reports, for tests."""


class Interrupted(Exception):
    """Stands for whatever ends a process in the middle."""


class Told:
    """Keeps what is reported, and raises at a step."""

    def __init__(self, stop_at=None):
        self.all, self.stop_at = [], stop_at

    def __call__(self, reached):
        if reached.step == self.stop_at:
            raise Interrupted
        self.all.append(reached)

    @property
    def scores(self):
        return [(reached.step, reached.score, reached.whole) for reached in self.all]
