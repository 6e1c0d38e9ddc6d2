"""BenchMD, a benchmark of modality-agnostic learning on medical data, as a service on Ray.

What `benchmd_ray.api` has is here, too, and imported when it is first used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from benchmd_ray._version import __version__ as __version__

if TYPE_CHECKING:
    from benchmd_ray.api import (
        BenchmdError,
        CatalogData,
        Classifier,
        allow,
        build,
        catalog,
        classifier,
        encoder,
        export_model,
        pretrain,
        read_results,
        transfer,
        tune,
        write_report,
    )

__all__ = [
    "BenchmdError",
    "CatalogData",
    "Classifier",
    "allow",
    "build",
    "catalog",
    "classifier",
    "encoder",
    "export_model",
    "pretrain",
    "read_results",
    "transfer",
    "tune",
    "write_report",
]


def __getattr__(name: str) -> Any:
    """What `__all__` names."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from benchmd_ray import api

    return getattr(api, name)


def __dir__() -> list[str]:
    """Names of the module, those of `__all__` too."""
    return sorted({*globals(), *__all__})
