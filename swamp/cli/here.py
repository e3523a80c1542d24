"""A run in this very process, for a repository that no server holds.

There is nobody to leave the run to: Ctrl-C, SIGTERM or SIGHUP cancels it, a second one stops at
once.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import typer

from swamp.cli.console import Console
from swamp.cli.follow import OnInterrupt, Watch, code_of, follow, signals_interrupt

if TYPE_CHECKING:
    from swamp.cli.run_lines import RunLines


def run_here(console: Console, request: dict[str, Any], lines: RunLines) -> None:
    """Run what `request` asks for, and show it to its end; ends the command as `follow` does.

    RepositoryLocked when somebody holds the repository after all.
    """
    from swamp.cli.serve import serve_line
    from swamp.cli.settings import kept
    from swamp.client import Client
    from swamp.serve.own_run import OwnRun

    layout = console.layout()
    console.detail("no server runs here: the run is this command's own")

    def report(found: dict[str, Any]) -> None:
        line = serve_line(found)
        if line is not None:
            console.note(line)

    with signals_interrupt():
        try:
            own = OwnRun(layout, request, kept(layout), report)
            watch = Watch(
                Client(layout.socket),
                own.id,
                0,
                OnInterrupt.CANCEL,
                is_here=True,
                failed=own.failed,
            )
            with own:
                try:
                    console.detail(f"run {own.id}")
                    follow(console, watch, lines, own.interrupted)
                except KeyboardInterrupt as interrupt:
                    # It came before anybody followed the run.
                    follow(console, watch, lines, interrupt)
        except KeyboardInterrupt as interrupt:
            # It came before the run had begun, or when it was over.
            raise typer.Exit(code_of(interrupt)) from None
