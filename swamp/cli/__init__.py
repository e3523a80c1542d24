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
    if arguments is not None:
        return _run(list(arguments))
    # What is loaded stays: to look for garbage meanwhile makes a start longer, and finds none. The
    # command itself begins with it (`command`).
    gc.disable()
    code = _run(sys.argv[1:])
    # The process ends. Its last look for garbage would go through all that was loaded.
    gc.freeze()
    threading = sys.modules.get("threading")
    if threading is not None and any(thread.daemon for thread in threading.enumerate()):
        _leave(code)
    return code


def _run(arguments: list[str]) -> int:
    try:
        from swamp.cli.running import run

        return run(arguments)
    except KeyboardInterrupt:
        return INTERRUPTED


def _leave(code: int) -> None:
    """End the process beside a thread that was given up, say on a collector that does not answer.

    The interpreter's own end would take the ground from under it: one inside of OpenSSL crashes.
    """
    import os
    from contextlib import suppress

    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError, ValueError):
            stream.flush()
    os._exit(code)
