"""The command line. `main` is the entry point of `swamp`; `running` has what it does.

Nothing is imported here before `main` is called: Ctrl-C is no traceback from the first moment on.
"""

from __future__ import annotations

import gc
import sys
from collections.abc import Sequence

INTERRUPTED = 130


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; its exit code. Errors have been printed. None: the process's own command."""
    try:
        if arguments is None:
            # What is loaded stays: to look for garbage meanwhile makes a start longer, and finds
            # none. The command itself begins with it (`command`).
            gc.disable()
        from swamp.cli.running import run

        return run(sys.argv[1:] if arguments is None else list(arguments))
    except KeyboardInterrupt:
        return INTERRUPTED
    finally:
        if arguments is None:
            # The process ends. Its last look for garbage would go through all that was loaded.
            gc.freeze()
