"""``python -m benchmd_ray.cli``."""

import sys

if not sys.flags.safe_path:
    del sys.path[0]  # the working folder, which may hold what others wrote

from benchmd_ray.cli import main

main()
