from dataclasses import replace
from types import SimpleNamespace

import pytest
import ray

from benchmd_ray.service import execution, nodes
from benchmd_ray.service.capacity import Capacity, Need, cluster_capacity
from benchmd_ray.service.execution import Execution, RunningItem
from benchmd_ray.service.nodes import Nodes

ONE = Need(cpus=1.0, gpus=0.0, workers=1, spare=False)
WIDE = Need(cpus=4.0, gpus=2.0, workers=2, spare=True)
HEAD = Capacity(0.0, 0.0, 0.0, ((0.0, 0.0),), frozenset({"head"}))
GROWN = Capacity(6.0, 2.0, 6.0, ((0.0, 0.0), (6.0, 2.0)), frozenset({"head", "worker"}))


@pytest.fixture
def world(monkeypatch):
    """A clock and a cluster that tests set; keeps what is asked for."""

    class World:
        now, capacity, asked = 0.0, HEAD, []

        def at(self, leaving):
            return HEAD if "worker" in leaving else self.capacity

    world = World()
    world.asked = []
    monkeypatch.setattr(nodes.time, "monotonic", lambda: world.now)
    monkeypatch.setattr(nodes, "cluster_capacity", lambda cpus, leaving=(): world.at(leaving))
    monkeypatch.setattr(
        "ray.autoscaler.sdk.request_resources", lambda bundles: world.asked.append(bundles)
    )
    return world


def test_what_does_not_fit_waits_for_nodes_and_goes_on_when_they_come(world):
    said = []
    seen = Nodes(None, attached=True, say=said.append)
    assert seen.refusal(ONE) == ""
    assert said == [
        "waiting up to 600 s for nodes: a run needs 1 CPU and 0 GPUs, and the cluster has 0 and 0 "
        "now"
    ]
    world.now, world.capacity = 4.0, GROWN
    seen.look(lambda: [ONE])
    assert seen.refusal(ONE) == ""  # nothing was looked at yet
    world.now = 5.0
    seen.look(lambda: [ONE])
    assert seen.refusal(ONE) is None
    assert said[1:] == ["node worker came; the cluster has 2 nodes with 6 CPUs and 2 GPUs"]


def test_what_never_fits_is_refused_after_a_while_and_anew_when_nodes_went_away(world):
    world.capacity = GROWN
    seen = Nodes(None, attached=True)
    assert seen.refusal(ONE) is None
    world.capacity = HEAD
    seen.look_soon()
    seen.look(lambda: [])
    while world.now < nodes.GROW_SECONDS:
        assert seen.refusal(ONE) == ""
        world.now += 30
    assert seen.refusal(ONE).endswith("No such node was added within 600 s.")


def test_only_the_time_counts_for_which_something_waited(world):
    said = []
    seen = Nodes(None, attached=True, say=said.append)
    assert seen.refusal(ONE) == ""
    world.now = 10 * nodes.GROW_SECONDS  # what it comes after was at work
    assert seen.refusal(ONE) == ""
    assert len(said) == 2


def test_an_embedded_ray_is_what_it_is(world):
    seen = Nodes(None, attached=False)
    assert seen.refusal(ONE).startswith("it needs 1 CPU at once and the cluster has 0")
    world.now, world.capacity = 9.0, GROWN
    seen.look(lambda: pytest.fail("nobody is asked"))
    assert seen.capacity == HEAD


def test_the_autoscaler_is_asked_for_what_could_work_and_for_nothing_in_the_end(world):
    seen = Nodes(None, attached=True)
    for now in (5.0, 10.0):  # the same is asked for once
        world.now = now
        seen.look(lambda: [ONE, WIDE, WIDE])
    seen.close()
    wide = {"CPU": 2.0, "GPU": 1.0}
    spare = {"CPU": 1.0}  # one for all
    assert world.asked == [[{"CPU": 1.0}, *[wide] * 4, spare], []]


def test_limits_of_a_users_own_do_not_hide_nodes(world):
    world.capacity = replace(GROWN, cpus=1.0)
    assert Nodes(1, attached=True).refusal(WIDE) is None


def test_a_node_that_is_about_to_go_away_holds_nothing_new(world):
    world.capacity = GROWN
    seen = Nodes(None, attached=True)
    seen.leave("worker")
    seen.look(lambda: [])
    assert seen.leaving() == {"worker"}
    assert seen.refusal(ONE) == ""
    world.now = nodes.LEAVING_SECONDS  # it is still there: another reason ended that process
    seen.look(lambda: [])
    assert seen.leaving() == set()
    assert seen.refusal(ONE) is None


def test_what_a_cluster_has_is_that_of_the_nodes_that_stay(monkeypatch):
    def node(name, alive=True, **resources):
        return {"NodeID": name, "Alive": alive, "Resources": resources}

    there = [node("a", CPU=4, GPU=1), node("b", CPU=8), node("c"), node("d", alive=False, CPU=9)]
    monkeypatch.setattr("ray.nodes", lambda: there)
    whole = cluster_capacity()
    assert whole == Capacity(12, 1, 12, ((4, 1), (8, 0), (0, 0)), frozenset("abc"))
    left = cluster_capacity(leaving={"a"})
    assert left == Capacity(8, 0, 8, ((8, 0), (0, 0)), frozenset("abc"))


def test_a_process_lost_after_a_notice_to_it_or_its_node_is_no_try(world, monkeypatch):
    def lose(reference):
        raise ray.exceptions.WorkerCrashedError

    monkeypatch.setattr("ray.get", lose)
    own = object.__new__(Execution)
    own.nodes, own.preempted, own.reserved = Nodes(None, attached=True), {"told"}, False
    ends = {}
    for name, node in (("told", ""), ("again", ""), ("other", "worker")):
        monkeypatch.setattr(execution, "node_in", lambda error, node=node: node)
        own.nodes.leave("worker")
        task = RunningItem(SimpleNamespace(name=name.replace("again", "told")), ONE, None)
        report, _ = own._report(None, task)
        assert "its process was lost (WorkerCrashedError: " in report.error
        ends[name] = (report.lost, report.again)
    assert ends == {"told": (True, False), "again": (False, True), "other": (True, False)}
