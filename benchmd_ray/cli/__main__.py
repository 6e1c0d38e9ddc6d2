"""``python -m benchmd_ray.cli``."""

from benchmd_ray.cli import main

main()
