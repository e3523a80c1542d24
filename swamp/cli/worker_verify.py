"""`swamp worker verify`: have workers show that they work, some at a time.

Each is asked about in a request of its own, so that a slow worker holds up nobody and its verdict
is told as soon as it is there.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated, Any
from urllib.parse import quote

import typer

from datastore.errors import NotFound, SwampError
from swamp.cli.command import Help, Server, command
from swamp.cli.completion import worker_names
from swamp.cli.console import Console
from swamp.cli.options import labels

if TYPE_CHECKING:
    from swamp.client import Client

AT_ONCE = 8
"""Workers that are probed at the same time."""

ANSWER_WITHIN_S = 130.0
"""The server gives a verdict within two minutes."""

Verdict = dict[str, Any]

Name = Annotated[
    str | None,
    typer.Argument(help="The worker's name.", autocompletion=worker_names),
]
Label = Annotated[
    list[str] | None,
    typer.Option("--label", metavar="K=V", help="Only workers with this label."),
]


def declare(app: typer.Typer) -> None:
    """Add the command to a group."""
    command(
        app,
        "verify",
        Help(
            "Probe connected workers end to end: start a runner, have it echo a marker, put an "
            "output and read it back. A worker that waits for its probe gets steps once one has "
            "passed. Takes a slot meanwhile, two minutes at most; exit code 1 unless some were "
            "there and all passed.",
            ("swamp worker verify", "swamp worker verify w1", "swamp worker verify --label rack=7"),
        ),
    )(verify)


def verify(console: Console, name: Name = None, label: Label = None, server: Server = None) -> None:
    client = console.needed_server(server)
    names = _chosen(client, name, labels("", label or []))
    if len(names) > 1:
        console.note(f"Probing {len(names)} workers, {min(AT_ONCE, len(names))} at a time")
    found = []
    for verdict in _verdicts(client, names):
        found.append(verdict)
        if not console.json:
            console.print(_lines(verdict))
    passed = sum(one["status"] == "pass" for one in found)
    document = {
        "workers": sorted(found, key=lambda one: str(one["name"])),
        "total": len(found),
        "passed": passed,
        "failed": len(found) - passed,
    }
    console.show(document, [_summary(document)])
    if document["failed"] or not found:
        # An empty fleet has shown nothing: a pipeline that asks must not go on.
        raise typer.Exit(1)


def _chosen(client: Client, name: str | None, wanted: dict[str, str]) -> list[str]:
    """The workers to probe: that one, or all connected ones with these labels."""
    known = client.get("/api/v1/workers", all=None if name is None else 1)["workers"]
    found = [one["name"] for one in known if wanted.items() <= one["labels"].items()]
    if name is None:
        return found
    if name not in [one["name"] for one in known]:
        from controllers.forgetting import no_such_worker

        raise no_such_worker(name)
    if name not in found:
        raise NotFound(f"worker '{name}' does not have these labels; see `swamp worker list`")
    return [name]


def _verdicts(client: Client, names: list[str]) -> Iterator[Verdict]:
    """The verdicts as they come. The threads end with the process: it may be interrupted."""
    to_ask: queue.SimpleQueue[str] = queue.SimpleQueue()
    answers: queue.SimpleQueue[Verdict] = queue.SimpleQueue()
    for name in names:
        to_ask.put(name)
    # Each verdict takes its time; there is nothing to say of it.
    client.slow = None

    def ask() -> None:
        while True:
            try:
                name = to_ask.get_nowait()
            except queue.Empty:
                return
            answers.put(_verdict(client, name))

    for _ in range(min(AT_ONCE, len(names))):
        threading.Thread(target=ask, name="verify", daemon=True).start()
    for _ in names:
        yield answers.get()


def _verdict(client: Client, name: str) -> Verdict:
    path = f"/api/v1/workers/{quote(name, safe='')}/verify"
    try:
        verdict: Verdict = client.post(path, within_s=ANSWER_WITHIN_S)
    except SwampError as error:
        return {"name": name, "status": "error", "error": str(error)}
    return verdict


def _lines(verdict: Verdict) -> list[str]:
    where = "/".join(verdict[part] for part in ("platform", "arch") if part in verdict)
    line = f"{verdict['name']}: {verdict['status']}" + (f" ({where})" if where else "")
    whys = [*verdict.get("failures", ()), *([verdict["error"]] if "error" in verdict else [])]
    return [line, *(f"  {why}" for why in whys)]


def _summary(document: dict[str, Any]) -> str:
    if not document["total"]:
        return "No connected worker to probe; see `swamp worker list --all`"
    return f"{document['passed']} of {document['total']} passed"
