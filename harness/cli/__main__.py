"""`python -m harness.cli`: the console script `virt-overhead`, without its installation."""

from __future__ import annotations

import sys

from harness import main

if __name__ == "__main__":
    sys.exit(main())
