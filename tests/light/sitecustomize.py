"""Refuses PyTorch in child processes of tests not marked ``slow``; see ``tests/tiers.py``."""

import os
import pathlib
import sys
from importlib.machinery import ModuleSpec


class _Refused:
    """Finder and loader of PyTorch, which raise an error when it is loaded."""

    @classmethod
    def find_spec(cls, name: str, *_: object) -> ModuleSpec | None:
        return ModuleSpec(name, cls()) if name == "torch" else None

    def create_module(self, spec: ModuleSpec) -> None:
        return None

    def exec_module(self, module: object) -> None:
        pathlib.Path(os.environ["BENCHMD_TEST_IMPORTED"]).touch()
        raise ImportError("a test not marked slow started a process that imports PyTorch")


if "BENCHMD_TEST_IMPORTED" in os.environ:
    sys.meta_path.insert(0, _Refused)  # type: ignore[arg-type]
