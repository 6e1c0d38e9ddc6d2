"""A search on S3 over several machines, which lose a node and their driver."""

import sys
from pathlib import Path

import pytest
import searching
from losing import LONG, Command, evaluated, freeze, lose

from benchmd_ray.data.inner import inner_catalog
from benchmd_ray.storage.bucket import open_bucket
from benchmd_ray.storage.location import Address

pytestmark = [pytest.mark.ray, pytest.mark.nightly, pytest.mark.xdist_group("faults")]


class Search(Command):
    """A search at work in a process of its own."""

    program = (sys.executable, str(Path(searching.__file__)))


@pytest.fixture
def machine(tmp_path):
    """Environment of another machine, which shares no folder with others."""
    token = str(Path.home() / ".ray" / "auth_token")  # all of them are of one cluster

    def environment(name):
        home = tmp_path / name
        home.mkdir()
        return {"BENCHMD_CACHE": "", "HOME": str(home), "RAY_AUTH_TOKEN_PATH": token}

    return environment


@pytest.fixture
def catalogs(ecg_catalogs, tmp_path):
    source = next(c for c in ecg_catalogs.values() if c.card.role == "source")
    return [inner_catalog(source, tmp_path / "inner", e).path for e in range(3)]


def outcome(place):
    return [
        (trial.number, trial.state, dict(trial.values), dict(trial.evaluations))
        for trial in searching.study_of(place).trials()
    ]


def test_a_search_loses_a_node_and_its_driver_and_finds_the_same(
    storage, start_cluster, machine, catalogs, tmp_path
):
    calm = tmp_path / "tune-calm-000000000001"
    calm.mkdir()
    reference = Search(tmp_path / "calm.txt", "local", calm, *catalogs)
    assert reference.wait(LONG) == 0, reference.output
    nodes = start_cluster(0)
    for number in range(2):
        nodes.add(num_cpus=1, env_vars=machine(f"node-{number}"))
    place = Address("s3://lab/study/searches/tune-calm-000000000001")
    arguments, drivers = (nodes.address, place, *catalogs), machine("driver")
    first = Search(tmp_path / "first.txt", *arguments, **drivers)
    first.until("an evaluation", lambda: evaluated("s3://lab/study"), LONG)
    node, _ = first.until("a job at work", lambda: freeze(nodes, "ImplicitFunc"), LONG)
    lose(nodes, node)
    nodes.add(num_cpus=1, env_vars=machine("a-node-that-came"))
    first.until("the loss", lambda: ": its node was lost" in first.output, LONG)
    before = evaluated("s3://lab/study")
    first.until("more", lambda: evaluated("s3://lab/study") > before, LONG)
    first.kill()
    second = Search(tmp_path / "second.txt", *arguments, **machine("another-driver"))
    assert second.wait(2 * LONG) == 0, second.output
    assert outcome(place) == outcome(calm)
    assert not [key for key in open_bucket("s3://lab/study").objects() if key.endswith(".tar")]
    names = {
        path.relative_to(calm / "models").as_posix() for path in (calm / "models").rglob("*.*")
    }
    assert set(open_bucket(f"{place}/models").objects()) == names
    nodes.stop()
