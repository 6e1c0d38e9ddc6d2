"""A folder that nodes of a cluster must share: both nodes here are the one of the test's Ray."""

import pytest
import ray

from benchmd_ray.cluster import connection as cluster
from benchmd_ray.cluster.connection import require_shared
from benchmd_ray.errors import BenchmdError

pytestmark = pytest.mark.ray


@pytest.fixture
def two_nodes(ray_cluster, monkeypatch):
    nodes = ray.nodes()
    assert len(nodes) == 1
    monkeypatch.setattr(ray, "nodes", lambda: [*nodes, *nodes, {**nodes[0], "Alive": False}])


def test_a_folder_that_all_nodes_see_is_taken(two_nodes, tmp_path):
    require_shared(tmp_path)
    assert not list(tmp_path.iterdir())


def test_a_folder_that_a_node_does_not_see_is_refused(two_nodes, tmp_path, monkeypatch):
    monkeypatch.setattr(cluster, "_is_file", lambda path: False)
    with pytest.raises(BenchmdError, match=r"2 of .* 2 nodes cannot see .*BENCHMD_CACHE"):
        require_shared(tmp_path)
    assert not list(tmp_path.iterdir())


def test_one_node_needs_no_shared_folder(ray_cluster, tmp_path, monkeypatch):
    monkeypatch.setattr(cluster, "_is_file", lambda path: False)
    require_shared(tmp_path)
