"""Packages are found here; all else is in setup.cfg."""

from setuptools import find_namespace_packages, setup

OWN = find_namespace_packages(include=["benchmd_ray*"], exclude=["*__pycache__*"])
DATA = find_namespace_packages(
    include=["data_catalog*", "model_catalog*", "search_spaces*"], exclude=["*__pycache__*"]
)
"""Folders at the top that are installed within the package (``package_dir`` of setup.cfg)."""

setup(packages=[*OWN, *(f"benchmd_ray.{name}" for name in DATA)])
