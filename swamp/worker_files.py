"""The person's file of a worker: what commands write into it, and that `forget` takes it back.

A file in which a person wrote is never removed: it is said that it stays, and what it will do. The
server's API and the commands of a stopped server do the same here.
"""

from __future__ import annotations

import asyncio
from typing import Any

from controllers.forgetting import forget_worker
from datastore import files
from datastore.errors import InvalidFile
from datastore.kinds import WORKERS
from datastore.layout import Layout
from datastore.regular_file import read_bytes
from datastore.store import Store
from datastore.yaml_edit import new_file
from datastore.yaml_loader import load

COMMENT = (
    "What is asked of this worker; see `swamp worker list`.\n"
    "Deleting this file changes nothing; `schedulable: true` lets it have steps again,\n"
    "`drain: false` lets it stay when it comes back."
)


async def forget(store: Store, layout: Layout, name: str) -> dict[str, Any]:
    """`{name, token, fileStays?}`, durable: the worker's record goes, and what was asked of it.

    Errors as of `forget_worker`.
    """
    worker = forget_worker(store, name)
    await store.barrier()
    assert worker.status is not None
    answer = {"name": name, "token": worker.status.token}
    stays = await asyncio.to_thread(_take_back, layout, name)
    return answer if stays is None else {**answer, "fileStays": stays}


def _take_back(layout: Layout, name: str) -> str | None:
    """Remove the file if commands wrote all of it, else say what stays. Blocks."""
    path = layout.desired(WORKERS.folder) / f"{name}.yaml"
    data = read_bytes(path) if files.stat_of(path) is not None else b""
    if data and _is_of_commands(data) and files.remove_if_unchanged(path, data):
        return None
    return what_stays(layout, name)


def what_stays(layout: Layout, name: str) -> str | None:
    """What the file does to a worker that enrolls by this name; None without a file. Blocks."""
    path = layout.desired(WORKERS.folder) / f"{name}.yaml"
    if files.stat_of(path) is None:
        return None
    return f"{layout.shown(path)} stays, a person wrote in it: {_effect(read_bytes(path))}"


def _effect(data: bytes) -> str:
    try:
        spec = load(data, "").value.get("spec")
    except InvalidFile:
        return "it does not parse, and does nothing until it is mended"
    spec = spec if isinstance(spec, dict) else {}
    if spec.get("drain") is True:
        return "a worker that enrolls by this name is drained at once"
    if spec.get("schedulable") is False:
        return "a worker that enrolls by this name gets no steps"
    return "it keeps no steps from a worker that enrolls by this name"


def _is_of_commands(data: bytes) -> bool:
    """Whether commands would have written the same: no other comment, order, quoting or blank."""
    try:
        return new_file(load(data, "").value, COMMENT).encode() == data
    except InvalidFile:
        return False
