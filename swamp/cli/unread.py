"""Events of commands that go on for long: told to whoever reads them, dropped once nobody does.

The work of a server or a worker must not end, or end halfway, because a pipe was closed.
"""

from __future__ import annotations

import contextlib
import os
import sys
from typing import Any

from swamp.cli.console import Console
from swamp.stop_signals import let_go_of_terminal

CLOSED = "Whoever read stdout has gone: nothing more is printed there"


def tell(console: Console, document: dict[str, Any], line: str | None) -> None:
    """As `Console.event`, but never an error."""
    try:
        console.event(document, line)
    except BrokenPipeError:
        # What is printed from here on goes nowhere, without any error.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        with contextlib.suppress(OSError):
            print(CLOSED, file=sys.stderr, flush=True)
    except OSError:
        let_go_of_terminal()
        # Say stdout is a file on a full disk: that line is lost, later ones may not be.
        return
