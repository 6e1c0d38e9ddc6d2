"""Optional packages, installed by extras, and errors that name the extra."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from benchmd_ray.errors import BenchmdError, first_line


@dataclass(frozen=True)
class Extra:
    """An extra of the installation, as in `setup.cfg`."""

    packages: tuple[str, ...]
    use: str


EXTRAS: Mapping[str, Extra] = {
    "board": Extra(("cryptography",), "signatures of bundles (benchmd pack --key)"),
    "ct": Extra(("SimpleITK",), "volumes in NIfTI, NRRD and MetaImage files; masks"),
    "eeg": Extra(("mne", "edfio"), "recordings in EDF files"),
    "deepspeed": Extra(("deepspeed",), "training by several workers (execution.workers), and ZeRO"),
    "monai": Extra(("monai",), "networks of MONAI, segmentation"),
    "wandb": Extra(("wandb",), "Weights & Biases (--wandb)"),
    "cloud": Extra(("obstore",), "catalogs and stores in object stores (S3, Google, Azure)"),
    "hub": Extra(("huggingface_hub",), "downloads of ImageNet weights"),
    "transformers": Extra(("transformers",), "encoders of transformers (--from hf:FOLDER)"),
    "onnx": Extra(("onnx", "onnxscript", "onnxruntime"), "benchmd export --onnx"),
}
"""Extras by their name in ``pip install 'benchmd-ray[NAME]'``; ``all`` is all of them."""
_EXTRA_OF = {package: name for name, extra in EXTRAS.items() for package in extra.packages}


class MissingExtra(BenchmdError):
    """A package is not installed, so all work that needs it fails on this machine."""


def command_for(*extras: str) -> str:
    """The command that installs extras."""
    return f"pip install 'benchmd-ray[{','.join(sorted(extras))}]'"


def is_installed(package: str) -> bool:
    """Whether a package is installed, without importing it; a mere folder does not count."""
    if package in sys.modules:
        return sys.modules[package] is not None
    spec = importlib.util.find_spec(package)
    return spec is not None and spec.origin is not None


def require(purpose: str, *packages: str, instead: str = "") -> None:
    """Refuse work before it starts if a required package is not installed.

    ``purpose`` begins the message; ``instead`` is a sentence on what works without the package.
    """
    missing = [package for package in packages if not is_installed(package)]
    if missing:
        raise _missing(purpose, missing, _absent(missing), instead)


@contextmanager
def importing(package: str, purpose: str, instead: str = "") -> Iterator[None]:
    """Context for importing a package of an extra, see `require`."""
    try:
        yield
    except ImportError as error:
        what = _absent([package])
        if is_installed(package):  # the package is damaged, or lacks a dependency
            why = first_line(error)
            what = f"the package {package}, which cannot be imported ({why}). Install it again"
        raise _missing(purpose, [package], what, instead) from error


def _absent(packages: Sequence[str]) -> str:
    *others, last = packages
    if not others:
        return f"the package {last}, which is not installed"
    return f"the packages {', '.join(others)} and {last}, which are not installed"


def _missing(purpose: str, packages: Sequence[str], what: str, instead: str) -> MissingExtra:
    command = command_for(*{_EXTRA_OF[package] for package in packages})
    return MissingExtra(f"{purpose} needs {what}: {command}. {instead}".rstrip())
