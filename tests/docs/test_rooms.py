"""The picture of the rooms in docs/architecture.md."""

import importlib.util
from pathlib import Path

DOCS = Path(__file__).resolve().parents[2] / "docs"
SPEC = importlib.util.spec_from_file_location("rooms", DOCS / "rooms.py")
rooms = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(rooms)


def test_the_picture_is_that_of_the_imports():
    assert rooms.PICTURE.read_text("utf-8") == rooms.picture(), "run: python docs/rooms.py"


def test_each_room_is_above_those_that_it_imports():
    floor = {name: number for number, names in enumerate(rooms.floors()) for name in names}
    assert floor.keys() == rooms.rooms().keys()
    for name, path in rooms.rooms().items():
        assert all(floor[below] < floor[name] for below in rooms.imported(path))
