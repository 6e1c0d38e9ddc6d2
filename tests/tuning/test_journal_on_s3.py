"""The journal of a search on S3: nothing is lost, and nobody writes into another's."""

import threading

import pytest
from waiting import until

from benchmd_ray.errors import BucketError, Stopped, Transient
from benchmd_ray.files.integrity import Damaged
from benchmd_ray.settings.definition import Settings
from benchmd_ray.storage import patience, segments
from benchmd_ray.storage.bucket import Bucket, open_bucket
from benchmd_ray.storage.lease import LeaseLost
from benchmd_ray.storage.location import Address
from benchmd_ray.tuning.families import Family
from benchmd_ray.tuning.method import Method
from benchmd_ray.tuning.spaces import Parameter, Space
from benchmd_ray.tuning.study import Study

SPACE = Space(
    "made",
    (
        Parameter("transfer.optimiser.lr", "log float", 1e-3, low=1e-5, high=0.1),
        Parameter("transfer.label_smoothing", "float", 0.1, low=0.0, high=0.2, step=0.1),
    ),
)


@pytest.fixture
def journal(s3):
    return Address(f"{s3}/study/searches/tune-made-0123456789ab/journal")


FAMILY = Family("mae", "linear", SPACE, (Settings(),))


def opened(place):
    return Study(place, [FAMILY], Method())


def work(study, count):
    """Trials with an evaluation each, some stopped, some failed."""
    for _ in range(count):
        job = study.propose()
        lr = job.values["transfer.optimiser.lr"]
        study.reported(job.number, 1, 0.5 + lr, 1.0)
        if job.number % 5 == 3:
            study.ended(job.number, 0, seconds=2.0, reason="the loss became NaN")
        else:
            study.evaluated(job.number, 0, {"ecg": 0.6 + lr}, 2.0)
        if (more := study.climb()) is not None:
            study.evaluated(more.number, more.evaluation, {"ecg": 0.6 + lr}, 4.0)


def known(study):
    return [
        (t.number, t.state, dict(t.values), t.evaluations, t.curve, t.seconds, t.reason)
        for t in study.trials()
    ]


def test_a_search_on_s3_knows_what_one_in_a_folder_knows(journal, tmp_path, monkeypatch):
    monkeypatch.setattr(segments, "FULL", 2000)
    here, there = opened(tmp_path / "study.log"), opened(journal)
    work(here, 12)
    work(there, 12)
    assert known(there) == known(here)
    assert len(open_bucket(str(journal)).objects()) > 3
    again = opened(journal)
    assert known(again) == known(here)
    work(here, 3)
    work(again, 3)
    assert known(again) == known(here)


def test_each_event_is_one_request(journal, monkeypatch):
    study, puts, usual = opened(journal), [], Bucket.write

    def counted(self, key, data, **condition):
        puts.append(key)
        return usual(self, key, data, **condition)

    monkeypatch.setattr(Bucket, "write", counted)
    job = study.propose()
    study.reported(job.number, 1, 0.5, 1.0)
    study.evaluated(job.number, 0, {"ecg": 0.5}, 2.0)
    study.ended(job.number, 0, seconds=3.0, reason="the loss became NaN")
    assert puts == ["000000.log"] * 4


def test_who_does_not_know_the_end_writes_nothing(journal):
    """A driver that lost its lease and goes on all the same."""
    first = opened(journal)
    work(first, 2)
    second = opened(journal)
    work(second, 1)
    with pytest.raises(LeaseLost, match="another process has written"):
        first.propose()
    assert known(opened(journal)) == known(second)


@pytest.mark.parametrize("full", [2**16, 1])
def test_a_write_whose_answer_was_lost_is_known_as_ones_own(journal, monkeypatch, full):
    monkeypatch.setattr(segments, "FULL", full)
    study, usual, lost = opened(journal), Bucket.write, []

    def cut_off(self, key, data, **condition):
        etag = usual(self, key, data, **condition)
        if not lost:
            lost.append(key)
            error = BucketError("the connection was closed")
            error.away = True
            raise error
        return etag

    monkeypatch.setattr(Bucket, "write", cut_off)
    work(study, 3)
    assert lost
    assert known(opened(journal)) == known(study)


@pytest.mark.slow
def test_a_server_that_is_away_for_a_while_is_waited_for(journal, s3_server, monkeypatch):
    study, usual, tries = opened(journal), Bucket.write, []

    def counted(*arguments, **named):
        tries.append(arguments)
        return usual(*arguments, **named)

    monkeypatch.setattr(Bucket, "write", counted)
    s3_server.stop()

    def back():
        until("second try", lambda: len(tries) > 1)
        s3_server.start()

    thread = threading.Thread(target=back)
    thread.start()
    try:
        work(study, 2)
    finally:
        thread.join()
    assert known(opened(journal)) == known(study)


def test_a_server_that_stays_away_is_an_error(journal, s3_server, monkeypatch):
    study = opened(journal)
    monkeypatch.setattr(patience, "PATIENCE_SECONDS", 0.0)
    s3_server.stop()
    try:
        with pytest.raises(BucketError, match="cannot write to s3://benchmd-test/study/searches"):
            study.propose()
    finally:
        s3_server.start()
    assert known(opened(journal)) == []


def test_what_a_signal_kept_from_being_written_is_not_known(journal, monkeypatch):
    study = opened(journal)
    work(study, 2)
    before = known(study)

    def interrupted(*_):
        raise Stopped

    with monkeypatch.context() as patch:
        patch.setattr(segments.JournalSegments, "append", interrupted)
        with pytest.raises(Stopped):
            study.propose()
    assert known(study) == before
    for asked in (study.propose, lambda: study.ended(0, 0, seconds=9.0)):
        with pytest.raises(Transient, match="was interrupted: run the same command again"):
            asked()
    assert known(opened(journal)) == before


def test_damage_is_named(journal, monkeypatch):
    monkeypatch.setattr(segments, "FULL", 500)
    work(opened(journal), 4)
    bucket = open_bucket(str(journal))
    held = bucket.read("000001.log").data
    bucket.write("000001.log", held.replace(b"0.5", b"0.9", 1))
    with pytest.raises(Damaged, match=r"line \d+ is not what was written"):
        opened(journal)
    bucket.write("000001.log", held[:-5])
    with pytest.raises(Damaged, match="line"):
        opened(journal)
    bucket.delete(["000001.log"])
    with pytest.raises(Damaged, match=r"one of its \d+ objects is missing"):
        opened(journal)
    bucket.write("000001.log", held)
    opened(journal)
    monkeypatch.setattr("benchmd_ray.tuning.journal.MAX_LOG_BYTES", 100)
    with pytest.raises(Damaged, match="more than 100 bytes"):
        opened(journal)


def test_a_journal_of_another_search_is_refused(journal, s3):
    work(opened(journal), 1)
    other = Address(f"{s3}/study/searches/tune-made-ba9876543210/journal")
    data = open_bucket(str(journal)).read("000000.log").data
    open_bucket(str(other)).write("000000.log", data)
    with pytest.raises(Damaged, match="was written for '0123456789ab', expected 'ba9876543210'"):
        opened(other)
