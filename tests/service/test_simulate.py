"""The simulated schedule, against a clock that ticks and against the best of all orders."""

import itertools
import random

import pytest

from benchmd_ray.errors import BenchmdError
from benchmd_ray.service.plan import Item
from benchmd_ray.service.simulate import (
    Resources,
    pace_of,
    seconds_needed,
    simulate,
    time_left,
)
from benchmd_ray.service.steps import Pretrain
from benchmd_ray.settings.definition import Settings


def item(name, seconds, after=None, cpus=1.0, gpus=0.0, disk=10, peak=0):
    return Item(
        name=name,
        step=Pretrain(),
        modality="ecg",
        source="ptb-xl",
        dataset="ptb-xl",
        policy="clean",
        technique="mae",
        setting="pretrain",
        seed=0,
        catalog=None,
        settings=Settings(),
        after=after,
        cpus=cpus,
        gpus=gpus,
        seconds=seconds,
        disk_bytes=disk,
        peak_bytes=peak,
    )


def drawn(seed, count=7, cpus=(1, 2), gpus=(0.0,)):
    """A small plan with whole seconds, no two chains of one length."""
    draw, items = random.Random(seed), []
    for number in range(count):
        before = draw.choice([None, *items])
        seconds = draw.randint(1, 9) + number / 1000
        items.append(
            item(
                f"i{number}",
                seconds,
                before and before.name,
                draw.choice(cpus),
                draw.choice(gpus),
                disk=draw.randint(1, 50),
                peak=draw.randint(0, 50),
            )
        )
    return items


def chain(items, one):
    behind = [chain(items, other) for other in items if other.after == one.name]
    return one.seconds + max(behind, default=0.0)


def ticked(items, resources, step=0.001):
    """Ends of all items, found by looking at every millisecond; and the most bytes at one time."""
    order = sorted(items, key=lambda i: -chain(items, i))
    ends, tick, peak = {}, 0, 0
    while len(ends) < len(items) or tick < max(ends.values()):
        for one in order:
            running = [i for i in items if ends.get(i.name, -1) > tick]
            ready = one.after is None or ends.get(one.after, tick + 1) <= tick
            cpus = sum(i.cpus for i in running) + one.cpus <= resources.cpus
            gpus = sum(i.gpus for i in running) + one.gpus <= resources.gpus + 1e-9
            if one.name not in ends and ready and cpus and gpus:
                ends[one.name] = tick + round(one.seconds / step)
        held = [i for i in items if i.name in ends]
        at_work = [i for i in held if ends[i.name] > tick]
        peak = max(peak, sum(i.disk_bytes for i in held) + sum(i.peak_bytes for i in at_work))
        tick = min((end for end in ends.values() if end > tick), default=tick + 1)
    return {name: end * step for name, end in ends.items()}, peak


@pytest.mark.parametrize("seed", range(25))
def test_the_schedule_is_that_of_a_clock_that_ticks(seed):
    resources = Resources(3, 1)
    items = drawn(seed, gpus=(0.0, 0.25, 0.5, 1.0))
    ends, peak = ticked(items, resources)
    schedule = simulate(items, resources)
    assert {n: end for n, (_, end) in schedule.times.items()} == pytest.approx(ends)
    assert schedule.peak_bytes == peak
    assert schedule.seconds == pytest.approx(max(ends.values()))


def in_order(items, order, cpus):
    """When all is done if each starts as early as it can, in a given order."""
    starts, ends = {}, {}
    for one in order:
        if one.after is not None and one.after not in ends:
            return float("inf")
        earliest = ends.get(one.after, 0.0)
        for start in sorted({earliest, *(end for end in ends.values() if end > earliest)}):
            edges = [start, *(s for s in starts.values() if start < s < start + one.seconds)]
            busy = (
                sum(i.cpus for i in items if starts.get(i.name, 9e9) <= at < ends.get(i.name, 0))
                for at in edges
            )
            if max(busy) + one.cpus <= cpus:
                starts[one.name], ends[one.name] = start, start + one.seconds
                break
    return max(ends.values())


@pytest.mark.parametrize("seed", range(8))
def test_it_is_never_better_than_the_best_order_and_seldom_much_worse(seed):
    items = drawn(seed, count=5)
    best = min(in_order(items, order, 2) for order in itertools.permutations(items))
    found = simulate(items, Resources(2)).seconds
    assert best - 1e-9 <= found <= 1.5 * best


def test_one_cpu_takes_the_sum_and_many_the_longest_chain():
    items = drawn(3, cpus=(1,))
    assert simulate(items, Resources(1)).seconds == pytest.approx(sum(i.seconds for i in items))
    longest = max(chain(items, one) for one in items)
    assert simulate(items, Resources(99)).seconds == pytest.approx(longest)


def test_what_is_done_is_not_done_again_and_frees_what_comes_after():
    items = [item("a", 5.0), item("b", 3.0, "a"), item("c", 1.0, "b")]
    assert simulate(items, Resources(1), done={"a"}).seconds == 4.0
    assert simulate(items[1:], Resources(1)).seconds == 4.0
    assert simulate(items, Resources(1), done={"a", "b", "c"}).seconds == 0.0


def test_four_quarters_of_a_gpu_are_one():
    items = [item(f"i{n}", 2.0, gpus=0.25) for n in range(8)]
    assert simulate(items, Resources(99, 1)).seconds == 4.0
    thirds = [item(f"i{n}", 2.0, gpus=1 / 3) for n in range(3)]
    assert simulate(thirds, Resources(99, 1)).seconds == 2.0


@pytest.mark.parametrize(
    ("needs", "message"),
    [
        ({"cpus": 4.0}, "wide needs 4 CPUs at once but only 2 can be used"),
        ({"gpus": 2.0}, "wide needs 2 GPUs at once but only 1 can be used"),
    ],
)
def test_an_item_that_can_never_start_is_refused(needs, message):
    with pytest.raises(BenchmdError, match=message):
        simulate([item("wide", 1.0, **needs)], Resources(2, 1))


def test_the_time_left_counts_what_runs_at_what_it_still_needs():
    running = [item("a", 100.0, disk=1)]
    waiting = [item("b", 10.0, "a"), item("c", 4.0)]
    left = time_left(waiting, {"a": 3.0}, Resources(1), items=running)
    assert left == 3.0 + 10.0 + 4.0
    assert time_left(waiting, {"a": 3.0}, Resources(2), items=running) == 13.0
    assert time_left(waiting, {"a": 3.0}, Resources(2), items=running, pace=2.0) == 23.0
    assert time_left([], {}, Resources(1)) == 0.0


def test_a_running_item_needs_what_its_progress_says_or_else_the_estimate():
    one = item("a", 100.0)
    assert seconds_needed(one, 30.0, 0.75) == pytest.approx(10.0)
    assert seconds_needed(one, 30.0, 1.0) == 0.0
    assert seconds_needed(one, 30.0) == 70.0
    assert seconds_needed(one, 30.0, pace=2.0) == 170.0
    assert seconds_needed(one, 500.0) == 5.0  # late, but not over


def test_the_pace_weighs_items_by_their_time():
    assert pace_of([]) == 1.0
    assert pace_of([(0.0, 5.0)]) == 1.0
    assert pace_of([(10.0, 20.0), (30.0, 30.0)]) == pytest.approx(50 / 40)
