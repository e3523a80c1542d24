"""One definition file as last read: its stat, what it defines, and what is wrong with it.

Reading is lazy twice: the same stat costs no read, the same bytes cost no parse.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from pathlib import Path
from typing import Literal, NamedTuple

from pydantic import VERSION

from datastore import yaml_loader, yaml_pairs
from datastore.clock import Clock
from datastore.definitions.checks import parse_workflow
from datastore.definitions.model import ModelDefinition, model_from_source, parse_model
from datastore.definitions.workflow import Workflow, workflow_from_source
from datastore.errors import InvalidFile
from datastore.files import Edition, edition_in
from datastore.index import DefinitionRow
from datastore.regular_file import odd_mode, oddity
from datastore.sqlite_file import to_json
from datastore.yaml_loader import MAX_BYTES, load

Kind = Literal["workflow", "model"]
Definition = Workflow | ModelDefinition

_RACY_NS = 50_000_000
_PIECE = 1 << 16


def _meaning() -> str:
    """Tells the code that gives files their meaning from every other version of it."""
    loader = (Path(yaml_loader.__file__), Path(yaml_pairs.__file__))
    code = [*Path(__file__).parent.glob("*.py"), *loader]
    found = hashlib.sha256(VERSION.encode())
    for path in sorted(code):
        found.update(path.read_bytes())
    return found.hexdigest()[:16]


MEANING = _meaning()


class Claim:
    """What a file defines, and the name and the id under which it wants to be found.

    One that the index has is not looked into before somebody asks for it.
    """

    __slots__ = ("_kept", "_made", "id", "name")

    def __init__(
        self, name: str, id: str, made: Definition | None, kept: DefinitionRow | None = None
    ) -> None:
        """Either what was made of the file, or what the index kept of it."""
        self.name = name
        self.id = id
        self._made = made
        self._kept = kept

    @property
    def definition(self) -> Definition:
        """The definition; InvalidFile if what the index had of it is of no use."""
        made = self._made
        if made is None:
            assert self._kept is not None
            made = self._made = _remade(self._kept)
        return made

    @property
    def parts(self) -> int:
        """About how much there is of it in memory: itself, and its steps. 0 if it is put away."""
        made = self._made
        if isinstance(made, Workflow):
            return 1 + sum(len(job.steps) for job in made.jobs)
        return 0 if made is None else 1

    def put_away(self, row: DefinitionRow) -> None:
        """Keep what the index has of it instead, a tenth of it, until somebody asks for it."""
        self._kept = row
        self._made = None


def _remade(row: DefinitionRow) -> Definition:
    try:
        source = json.loads(row.document)
        is_workflow = row.path.startswith("workflows/")
        return workflow_from_source(source) if is_workflow else model_from_source(source)
    except ValueError as error:
        problem = "what .swamp/index.db has of it is broken: change it, or start without that file"
        raise InvalidFile(row.path, problem) from error


class DefinitionFile(NamedTuple):
    """A file. `claim` is its last good version, `problem` what is wrong with it now.

    A tuple, as a start makes very many of them.
    """

    kind: Kind
    stat: Edition | None
    """None where the next look must read the file again whatever its stat says."""
    digest: bytes = b""
    claim: Claim | None = None
    problem: InvalidFile | None = None
    text: str = ""
    """What a file with a problem says, to tell who asks in vain for a name that is in it."""

    @classmethod
    def kept(cls, kind: Kind, row: DefinitionRow) -> DefinitionFile:
        """A file as the index had it."""
        claim = Claim(row.name, row.id, None, row)
        return cls(kind, row.stat, row.digest, claim)

    def to_keep(self, path: str) -> DefinitionRow | None:
        """What the index may have of it; None unless its stat and all that it says are good."""
        if self.stat is None or self.claim is None or self.problem is not None:
            return None
        claim = self.claim
        document = to_json(claim.definition.source)
        return DefinitionRow(path, self.stat, self.digest, MEANING, claim.name, claim.id, document)

    def says_as(self, other: DefinitionFile) -> bool:
        """Whether it is the other as far as anybody but its next look can tell."""
        return self.claim is other.claim and self.problem is other.problem

    def may_mean(self, name: str) -> bool:
        """Whether a file with a problem was probably meant to define that name or id."""
        known = self.claim
        if known is not None and name in (known.name, known.id):
            return True
        word = re.escape(name)
        return re.search(rf"(?<![\w@/-]){word}(?![\w/-])", self.text) is not None


def look(
    root: Path, shown_path: str, kind: Kind, seen: DefinitionFile | None, clock: Clock
) -> DefinitionFile | None:
    """The file as it is now: `seen` itself if nothing changed, None if there is no file.

    `shown_path` is below `root`, with slashes. A file that cannot be read or parsed keeps the
    definition it had.
    """
    path = f"{root}/{shown_path}"
    try:
        looked_at_ns = int(clock.now().timestamp() * 1e9)
        status = os.stat(path)
        stat = edition_in(status)
        if seen is not None and seen.stat == stat:
            return seen
        odd = odd_mode(status.st_mode)
        data = b"" if odd else _read(path, stat.size)
    except (FileNotFoundError, NotADirectoryError):
        odd = oddity(path)
        if odd is None:
            return None
        return DefinitionFile(kind, None, problem=InvalidFile(shown_path, odd))
    except OSError as error:
        odd = f"cannot be read: {error.strerror}"
    if odd is not None:
        problem = InvalidFile(shown_path, odd)
        return DefinitionFile(kind, None, b"", seen.claim if seen else None, problem)
    # A second write within one tick of the file system's clock would leave the same stat.
    settled = looked_at_ns - stat.ctime_ns > _RACY_NS
    trusted = stat if settled else None
    digest = hashlib.sha256(data).digest()
    if seen is not None and seen.digest == digest:
        return seen._replace(stat=trusted)
    return _parsed(data, shown_path, DefinitionFile(kind, trusted, digest), seen)


def _read(path: str, size: int) -> bytes:
    """What a file holds, by its stat so many bytes; not all of it where that is too long.

    A start reads 100,000 of them. It may grow meanwhile: a log that is written there, say.
    """
    # Should it be a pipe by now, nobody waits for whoever writes to it.
    handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        data = os.read(handle, min(size, MAX_BYTES) + 1)
        while len(data) <= MAX_BYTES and (more := os.read(handle, _PIECE)):
            data += more
        return data[: MAX_BYTES + 1]
    finally:
        os.close(handle)


def _parsed(
    data: bytes, shown_path: str, file: DefinitionFile, seen: DefinitionFile | None
) -> DefinitionFile:
    parse = parse_workflow if file.kind == "workflow" else parse_model
    try:
        definition = parse(load(data, shown_path), shown_path)
    except InvalidFile as problem:
        last_good = seen.claim if seen else None
        text = data.decode(errors="replace")
        return file._replace(claim=last_good, problem=problem, text=text)
    return file._replace(claim=Claim(definition.name, definition.id, definition))
