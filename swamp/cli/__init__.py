"""The command line. `main` is the entry point of `swamp`; `running` has what it does.

Nothing is imported here before `main` is called: Ctrl-C is no traceback from the first moment on.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

INTERRUPTED = 130


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; its exit code. Errors have been printed."""
    try:
        from swamp.cli.running import run

        return run(list(sys.argv[1:] if arguments is None else arguments))
    except KeyboardInterrupt:
        return INTERRUPTED
