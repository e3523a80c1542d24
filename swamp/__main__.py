"""`python -m swamp` is `swamp`."""

from __future__ import annotations

import sys

from swamp.cli import main

if __name__ == "__main__":
    sys.exit(main())
