"""What people are told about their edits of files: one line each, few lines for many files.

Pure functions over what a look at the files found.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import PurePosixPath
from typing import Any

from datastore.desired import DesiredFile
from datastore.kinds import STARTS_NO_WORK
from datastore.observed import RescanReport
from datastore.record import Kind, Record

LINES_MOST = 3
"""So many files are named one by one; more are counted."""

_END_FIELDS = {"tokens": "revoked", "pending": "cancel", "leases": "cancel", "runs": "cancel"}
"""By kind the field of the spec that ends a record."""

_OF_RECORDS = frozenset({"workers", "pending", "leases", "runs"})
"""Kinds whose records are there before anything can be asked of them."""


def after_the_end(record: Record[Any, Any], file: DesiredFile, shown: str) -> str | None:
    """What to say of a desired file that cannot undo what is final; None where all is well."""
    field = _END_FIELDS.get(record.kind.folder)
    if field is None or not file.digest:
        return None
    says_end = file.spec.get(field) is True
    said_end = getattr(record.spec, field)
    what = f"{record.kind.title} '{record.name}'"
    if said_end and not says_end:
        return f"{shown}: '{field}' of {what} cannot be taken back, ends are final"
    over = not record.live and not record.kind.moves.get(record.state)
    if over and not said_end:
        return f"{shown} changes nothing: {what} is {record.state}, ends are final"
    return None


def of_nobody(kind: Kind[Any, Any], name: str, shown: str) -> str | None:
    """What to say of a desired file whose record does not exist; None where the file makes it."""
    if kind.folder not in _OF_RECORDS:
        return None
    return f"{shown} changes nothing for now: there is no {kind.title} '{name}'"


def put_back_lines(report: RescanReport) -> list[str]:
    """What was done about edits in `observed/`."""
    return [
        *lines(
            [f"{path} was edited and is put back: {_where(path)}" for path in report.put_back],
            f"{len(report.put_back)} files in observed/ were edited and are put back",
        ),
        *lines(
            [f"{path} was removed and is there again: {_where(path)}" for path in report.restored],
            f"{len(report.restored)} files in observed/ were removed and are there again",
        ),
        *lines(
            [
                f"{path} was not written by the server and is ignored{_until(path)}"
                for path in report.unknown
            ],
            f"{len(report.unknown)} files in observed/ were not written by the server",
        ),
    ]


def put_back_at_start_lines(changed: Sequence[str], removed: Sequence[str]) -> list[str]:
    """What a start did about files of `observed/` that were not as they had been written."""
    since = "while the server was stopped"
    return [
        *lines(
            [f"{path} was changed {since} and is put back: {_where(path)}" for path in changed],
            f"{len(changed)} files in observed/ were changed {since} and are put back",
        ),
        *lines(
            [f"{path} was removed {since} and is there again: {_where(path)}" for path in removed],
            f"{len(removed)} files in observed/ were removed {since} and are there again",
        ),
    ]


def taken_over_lines(paths: Sequence[str]) -> list[str]:
    """What a start did about tokens and pauses that no journal or index knew."""
    return lines(
        [
            f"{path} was not written by this server and is taken over as it is: it starts no work"
            for path in paths
        ],
        f"{len(paths)} tokens and pauses were not written by this server and are taken over",
    )


def lines(each: Sequence[str], many: str) -> list[str]:
    """The lines, or where there are too many of them one with the first as an example."""
    return list(each) if len(each) <= LINES_MOST else [f"{many}; one of them: {each[0]}"]


def _until(path: str) -> str:
    return " until the next start" if PurePosixPath(path).parent.name in STARTS_NO_WORK else ""


def _where(path: str) -> str:
    found = PurePosixPath(path)
    if found.parent.name == "steps":
        return "cancel a step by its run in datastore/desired/runs/"
    return f"what is asked of it goes into datastore/desired/{found.parent.name}/{found.name}"
