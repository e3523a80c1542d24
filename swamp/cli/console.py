"""Where a command's answers and remarks go, and in which repository it works.

Answers go to stdout: lines for people, or one JSON document with `--json`. Remarks go to stderr.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from datastore.errors import NoRepository

if TYPE_CHECKING:
    from datastore.layout import Layout
    from swamp.client import Client


RECORDED = (
    "no server is running: this is what the records say, what is live in them goes on or ends at"
    " the next start"
)


@dataclass(slots=True)
class Console:
    """What the options that every command has add up to."""

    json: bool = False
    quiet: bool = False
    verbose: bool = False
    color: bool = True
    repo_dir: Path | None = None
    token: str | None = field(default=None, repr=False)
    ca_cert: Path | None = None
    asked: Client | None = None
    """The server that the command asked, if any."""

    def show(self, document: Any, lines: Iterable[str]) -> None:
        """The answer: the document with `--json`, else the lines."""
        if self.asked is not None and self.asked.degraded is not None:
            self.note(
                f"the server is degraded, this may show more than is on disk: {self.asked.degraded}"
            )
        if self.json:
            print(json.dumps(document, indent=2, ensure_ascii=False), flush=True)
        else:
            self.print(lines)

    def print(self, lines: Iterable[str], *, more: bool = False) -> None:
        """Lines on stdout, seen at once, or soon where more of them are to come at once."""
        shown = list(lines)
        if shown:
            print("\n".join(shown))
        if not more:
            sys.stdout.flush()

    @property
    def paints(self) -> bool:
        """Whether lines on stdout may have colors."""
        return self.color and not os.environ.get("NO_COLOR") and sys.stdout.isatty()

    def event(self, document: dict[str, Any], line: str | None) -> None:
        """One event of a long-running command: a compact JSON line, or the line for people."""
        if self.json:
            print(json.dumps(document, separators=(",", ":"), ensure_ascii=False), flush=True)
        elif line is not None and not self.quiet:
            print(line, flush=True)

    def note(self, line: str) -> None:
        """A remark for people; none with `--quiet` or `--json`."""
        if not (self.quiet or self.json):
            print(line, file=sys.stderr, flush=True)

    def warn(self, message: str) -> None:
        """What a person should know before the answer, on stderr; an event with `--json`."""
        warning = {"kind": "warning", "message": message}
        print(
            json.dumps(warning, ensure_ascii=False) if self.json else f"Warning: {message}",
            file=sys.stderr,
            flush=True,
        )

    def detail(self, line: str) -> None:
        """A remark that only `--verbose` shows."""
        if self.verbose:
            self.note(line)

    def recorded(self, is_live: bool) -> None:
        """Remark that records, not a server, were read, where they show something as live."""
        if is_live and self.asked is None:
            self.note(RECORDED)

    def layout(self) -> Layout:
        """The repository that the command works in; NoRepository without one.

        InvalidFile for one that a later swamp made.
        """
        from datastore.layout import Layout, find_root
        from datastore.marker import refuse_newer

        if self.repo_dir is not None and not self.repo_dir.is_dir():
            raise NoRepository(f"--repo-dir: {self.repo_dir} is no folder")
        layout = Layout(find_root(self.repo_dir or Path.cwd()))
        self.detail(f"repository: {layout.root}")
        refuse_newer(layout)
        return layout

    def server(self, url: str | None, *, needs_it: bool = False) -> Client | None:
        """The server at `url`, else the one that runs for this repository, else None.

        `needs_it`: also one that takes long to start is waited for. ShutOut for a user who cannot
        tell whether one runs.
        """
        from swamp.client import BadToken, Client
        from swamp.server_address import BadUrl

        if url is None:
            layout = self.layout()
            self.asked = self.local_server(layout, needs_it=needs_it)
            if self.asked is None:
                from datastore.shut_out import refuse_if_shut_out

                refuse_if_shut_out(layout)
            return self.asked
        try:
            self.asked = Client(url, token=self.token, ca_cert=self.ca_cert)
        except BadUrl as error:
            raise typer.BadParameter(f"--server {error}") from None
        except BadToken as error:
            raise typer.BadParameter(str(error)) from None
        self.asked.slow = self.note
        return self.asked

    def local_server(self, layout: Layout, *, needs_it: bool = False) -> Client | None:
        """The server that runs for the repository, if any; whoever waits for it is told so."""
        from swamp.client import SOCKET_WAIT_S, START_WAIT_S, local_client

        wait_s = START_WAIT_S if needs_it else SOCKET_WAIT_S
        client = local_client(layout, wait_s=wait_s, slow=self.note)
        if client is not None:
            client.slow = self.note
        return client

    def needed_server(self, url: str | None) -> Client:
        """As `server`; Unreachable where nobody listens."""
        from swamp.client import Unreachable

        client = self.server(url)
        if client is None:
            raise Unreachable(
                "no server is running here: start `swamp serve`, or name one with --server URL"
            )
        return client
