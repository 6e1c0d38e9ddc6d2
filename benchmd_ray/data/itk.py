"""SimpleITK, imported once it is needed: few datasets are read with it."""

from __future__ import annotations

from typing import Any

from benchmd_ray.extensions.extras import importing


def simple_itk() -> Any:
    """Import the module; raises `MissingExtra` where it is not installed."""
    with importing("SimpleITK", "reading or writing NIfTI, NRRD or MetaImage files"):
        import SimpleITK
    return SimpleITK
