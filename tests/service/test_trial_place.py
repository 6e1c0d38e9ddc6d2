"""How many trials work at once on clusters that grow and shrink."""

from types import SimpleNamespace

import pytest

from benchmd_ray.errors import BenchmdError, NoRoom
from benchmd_ray.service import trial_place
from benchmd_ray.service.capacity import Capacity
from benchmd_ray.service.choice import Choice
from benchmd_ray.service.families import Tuning
from benchmd_ray.service.searches import planned_searches
from benchmd_ray.service.trial_place import Room

CHOSEN = ("execution.device=cuda", "execution.gpu_share=0.5", "execution.cpus_per_worker=2")


def cluster(*nodes):
    cpus, gpus = (sum(each) for each in zip((0, 0), *nodes, strict=True))
    return Capacity(cpus, gpus, cpus, nodes)


class Nodes:
    """A cluster that is another one whenever it is looked at, and what it was asked for."""

    def __init__(self, *capacities, refusals=()):
        self.capacity, *self.later = capacities
        self.refusals, self.asked = list(refusals), []

    def look(self, needs):
        self.asked.append([(need.cpus, need.gpus, need.workers) for need in needs()])
        if self.later:
            self.capacity = self.later.pop(0)

    def refusal(self, need):
        return self.refusals.pop(0) if self.refusals else None


@pytest.fixture
def plan(write_manifest):
    def make(*assignments):
        chosen = (*CHOSEN, *assignments)
        choice = Choice((write_manifest("ptb-xl"),), assignments=chosen)
        return planned_searches(Tuning(choice, ("mae",), ("finetune-full",)), gpu=True)[0]

    return make


@pytest.fixture
def room(plan, monkeypatch):
    monkeypatch.setattr(trial_place, "WAIT_SECONDS", 0.0)
    stop = SimpleNamespace(check=lambda: None)

    def make(nodes, *assignments, at_once=None):
        return Room(plan(*assignments), nodes, at_once, (), stop=stop)

    return make


def test_nodes_that_come_are_used_and_those_that_go_are_not_counted_on(room):
    one, two, none = cluster((0, 0), (8, 1)), cluster((0, 0), (8, 1), (3, 2)), cluster((0, 0))
    nodes = Nodes(one, two, one, none, one)
    made = room(nodes)
    assert (made.place.gpus, made.place.at_once) == (0.5, 2)
    # Of the second node's CPUs one trial takes two, though it has room for four on its GPUs.
    assert [made(5) for _ in range(4)] == [3, 2, 0, 2]
    assert nodes.asked == [[(2.0, 0.5, 1)] * 5] * 4


def test_no_more_is_asked_for_than_would_work(room):
    nodes = Nodes(cluster((64, 8)))
    assert [room(nodes)(wanted) for wanted in (3, 1)] == [16, 16]
    assert [len(each) for each in nodes.asked] == [3, 1]
    nodes.asked.clear()
    assert room(nodes, at_once=2)(9) == 2
    assert [len(each) for each in nodes.asked] == [2]


def test_a_search_waits_for_its_first_node(room):
    nodes = Nodes(cluster((0, 0)), cluster((0, 0)), cluster((8, 1)), refusals=("", ""))
    assert room(nodes).place.at_once == 2
    assert nodes.asked == [[(2.0, 1.0, 1)]] * 2


def test_where_no_node_comes_it_says_what_a_trial_needs(room):
    with pytest.raises(BenchmdError, match=r"an evaluation needs 2 CPUs and .* there are 1 and 0"):
        room(Nodes(cluster((1, 0)), refusals=("it needs 2 CPUs",)))


def test_without_nodes_for_too_long_a_search_ends(room):
    nodes = Nodes(cluster((8, 1)))
    made = room(nodes)
    nodes.refusals = ["it needs 1 GPU and the cluster has 0."]
    with pytest.raises(NoRoom, match="nothing can run: it needs 1 GPU and the cluster has 0"):
        made(4)


def test_workers_of_a_trial_may_be_on_several_nodes(room):
    nodes = Nodes(cluster((9, 2), (9, 1)), cluster((9, 2), (9, 2)))
    made = room(nodes, "execution.workers=2")
    assert (made.place.cpus, made.place.gpus, made.place.workers) == (4.0, 2.0, 2)
    assert made.place.at_once == 1
    assert made(3) == 2
    assert nodes.asked == [[(4.0, 2.0, 2)] * 3]


@pytest.mark.parametrize(("share", "gpus", "at_once"), [("0.5", 0.5, 2), ("1", 1.0, 1)])
def test_large_trials_share_a_gpu_as_stated(room, monkeypatch, share, gpus, at_once):
    monkeypatch.setattr(trial_place, "_small", lambda plan: False)
    place = room(Nodes(cluster((8, 1))), f"execution.gpu_share_large={share}").place
    assert (place.gpus, place.at_once) == (gpus, at_once)
