"""One file of `observed/` or `history/` at a time, and the stats under which they were written."""

from __future__ import annotations

import json
import logging
import os
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from datastore import files
from datastore.files import Stat
from datastore.index import IndexRow
from datastore.journal import Op, Put, Remove, Story
from datastore.layout import IGNORE_ALL, Layout, make_folder
from datastore.record import Kind
from datastore.sqlite_file import to_json
from datastore.yaml_emitter import emit_readable

log = logging.getLogger(__name__)

_TEMP = re.compile(r"\.[0-9]+-[0-9]+\.tmp")


@dataclass(frozen=True, slots=True)
class Stored:
    """A record to write whose document is all that is known of it: from the journal, at a start."""

    kind: Kind[Any, Any]
    name: str
    document: Mapping[str, Any]

    @property
    def finished(self) -> bool:
        state = (self.document.get("status") or {}).get("state")
        return state not in self.kind.live_states


class ObservedFiles:
    """Writes and removes; one thread at a time. `stats` (by kind, then name) may be read by all."""

    def __init__(self, layout: Layout, kinds: Iterable[str]) -> None:
        self._layout = layout
        # As text: making a path of its parts takes longer than writing some files.
        self._folders = {folder: str(layout.observed(folder)) for folder in kinds}
        self._temps = str(layout.temps)
        self.stats: dict[str, dict[str, Stat]] = {folder: {} for folder in self._folders}

    def place_of(self, path: str) -> tuple[str, str] | None:
        """Kind and name of the record whose file that is; None for a file anywhere else."""
        folder, _, file = path.rpartition(os.sep)
        kind = folder.rpartition(os.sep)[2]
        if self._folders.get(kind) != folder or not file.endswith(".yaml"):
            return None
        return kind, file.removesuffix(".yaml")

    def is_own(self, path: Path, stat: Stat) -> bool:
        """Whether that stat of that file is the one under which the server wrote it."""
        place = self.place_of(str(path))
        return place is not None and self.stats[place[0]].get(place[1]) == stat

    def apply(self, op: Op | Stored) -> IndexRow | None:
        """Write or remove the file of a change; the index's row of a file that is there now."""
        match op:
            case Story(workflow, run, text):
                data = text.encode(errors="backslashreplace")
                self._write_story(self._layout.story_file(workflow, run), data)
                return None
            case Remove(kind, name):
                self._layout.expect_root()
                files.remove(self._path(kind.folder, name))
                self.stats[kind.folder].pop(name, None)
                return None
            case Put(record):
                kind, name, finished = record.kind, record.name, not record.live
                document: Mapping[str, Any] = record.document()
            case Stored(kind, name, document):
                finished = op.finished
        stat = self.write(kind.folder, name, document)
        self.stats[kind.folder][name] = stat
        return IndexRow(name, stat, finished, to_json(document))

    def write(self, kind: str, name: str, document: Mapping[str, Any]) -> Stat:
        """Write a record's file, its folder too if that is gone; OSError when the disk refuses."""
        path = self._path(kind, name)
        data = data_of(path, document)
        self._layout.expect_root()
        try:
            return files.write(path, data, self._temps)
        except FileNotFoundError:
            make_folder(self._layout, self._layout.observed(kind))
            files.ensure_ignored(self._folders[kind], IGNORE_ALL)
            return files.write(path, data, self._temps)

    def _path(self, kind: str, name: str) -> str:
        return f"{self._folders[kind]}{os.sep}{name}.yaml"

    def _write_story(self, path: Path, data: bytes) -> None:
        make_folder(self._layout, path.parent)
        if not files.write_once(path, data) and not path.stat().st_size:
            # A power cut before the file was synced leaves it empty; the journal still had it.
            files.write(path, data)


def data_of(path: str | Path, document: Mapping[str, Any]) -> bytes:
    """What the record's file at `path` holds."""
    try:
        # The index has it as it is; the file is for people and their tools, which take UTF-8 alone.
        text = emit_readable(document)
    except (ValueError, TypeError) as error:
        # Such a record must not hold up the others for ever: it is in the index all the same.
        log.error("%s is no clean YAML: %s", path, error)
        text = json.dumps(document, indent=2) + "\n"
    return text.encode()


def remove_temps(folder: Path, names: Iterable[str]) -> None:
    """Remove those of the names that a killed process had not yet swapped in.

    Only with the repository's lock held.
    """
    for name in names:
        if _TEMP.fullmatch(name):
            files.remove(folder / name)
