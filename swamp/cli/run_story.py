"""Runs whose records have gone by retention: told by their files in `datastore/history/`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import typer

from swamp.cli.console import Console
from swamp.cli.durations import show_duration

if TYPE_CHECKING:
    from datastore.layout import Layout


@dataclass(frozen=True, slots=True)
class RunStory:
    """What is left of a run."""

    run: str
    text: str
    document: dict[str, Any]
    """The text, parsed."""
    path: str

    @property
    def ended(self) -> str:
        """`succeeded at 2026-11-29T12:00:00.000Z after 3.0s; its story is in FILE`."""
        at, took_ms = self.document.get("endedAt"), self.document.get("durationMs")
        when = (f" at {at}" if at else "") + (
            f" after {show_duration(took_ms / 1000)}" if took_ms is not None else ""
        )
        return f"{self.document.get('state', 'over')}{when}; its story is in {self.path}"

    @property
    def named(self) -> str:
        """`Run ID (WORKFLOW)`."""
        return f"Run {self.run} ({self.document.get('workflow', '?')})"

    def answer(self) -> dict[str, Any]:
        """How it ended, as `swamp run cancel --json` tells it."""
        return {
            "runId": self.run,
            "workflowName": self.document.get("workflow"),
            "status": self.document.get("state"),
            "endedAt": self.document.get("endedAt"),
            "story": self.path,
        }


def find_story(layout: Layout, run: str) -> RunStory | None:
    """The story of that run, None without one. InvalidFile for one that somebody broke."""
    from datastore.reader import read_story
    from datastore.yaml_loader import load

    text = read_story(layout, run)
    if text is None:
        return None
    data = text.encode()
    document = load(data, f"history of run {run}", max_bytes=len(data), own=True).value
    path = layout.story_file(str(document.get("workflow", "")), run)
    return RunStory(run, text, document, layout.shown(path))


def watch_story(console: Console, story: RunStory) -> None:
    """Its end; ends the command like that of a finished run: with 1 unless it succeeded."""
    failure = str(story.document.get("failure", "")).splitlines()
    # What is left, and how it ended under the names that a run has which is still on record.
    shown = {
        "id": story.run,
        "workflowName": story.document.get("workflow"),
        "status": story.document.get("state"),
        **story.document,
        "story": story.path,
    }
    console.show(shown, [f"{story.named} has ended: {story.ended}", *failure])
    if story.document.get("state") != "succeeded":
        raise typer.Exit(1)
