"""Whatever happens to the files, the catalog agrees with a plain re-reading of all of them."""

import os
import tempfile
import threading
from dataclasses import dataclass
from pathlib import Path

from file_clock import FileClock, rewrite_unseen
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, rule

from datastore.definition_index import DefinitionIndex
from datastore.definitions import Catalog
from datastore.errors import NotFound
from datastore.index import Index

UUID_FILE = "fc786c30-fb49-425e-9803-525237cd9c47.yaml"
EVERY_FILE = ["a.yaml", "x.yaml", "deep/c.yaml", UUID_FILE]
"""Under other names than the definitions have, under one of theirs, and under that of none."""
FILES = st.sampled_from(EVERY_FILE)
NAMES = st.sampled_from(["w", "x", "y", "z"])
MARKS = st.sampled_from("0123456789")


class Repository(RuleBasedStateMachine):
    """Model files that change in every way that files do."""

    def __init__(self) -> None:
        super().__init__()
        self.folder = tempfile.TemporaryDirectory()
        self.models = Path(self.folder.name) / "models"
        (self.models / "deep").mkdir(parents=True)
        self.clock = FileClock()
        self.catalog = Catalog(Path(self.folder.name), clock=self.clock)

    def teardown(self) -> None:
        self.folder.cleanup()

    @rule(file=FILES, name=NAMES, mark=MARKS)
    def write(self, file: str, name: str, mark: str) -> None:
        (self.models / file).write_text(f"type: t\nname: {name}\ndescription: m{mark}\n")

    @rule(file=FILES, name=NAMES, mark=MARKS)
    def rewrite_unseen(self, file: str, name: str, mark: str) -> None:
        if there := sorted(self.models.rglob("*.yaml")):
            path = there[EVERY_FILE.index(file) % len(there)]
            rewrite_unseen(path, f"type: t\nname: {name}\ndescription: m{mark}\n")

    @rule()
    def settle(self) -> None:
        """From here on every file is told by its stat alone."""
        with self.clock.settled(Path(self.folder.name)):
            self.look()

    def look(self) -> None:
        self.catalog.scan()

    @rule(file=FILES, name=NAMES, mark=MARKS)
    def swap(self, file: str, name: str, mark: str) -> None:
        self.write("new", name, mark)
        os.replace(self.models / "new", self.models / file)

    @rule(source=FILES, to=FILES)
    def rename(self, source: str, to: str) -> None:
        if (self.models / source).exists():
            os.replace(self.models / source, self.models / to)

    @rule(file=FILES)
    def delete(self, file: str) -> None:
        (self.models / file).unlink(missing_ok=True)

    def read(self) -> dict[str, tuple[str, str] | None]:
        """For each file its name and description, None where it is broken."""
        found: dict[str, tuple[str, str] | None] = {}
        for path in sorted(self.models.rglob("*.yaml")):
            _, name, last = (line.split(": ") for line in path.read_text().splitlines())
            good = last[0] == "description"
            found[str(path.relative_to(self.models))] = (name[1], last[1]) if good else None
        return found


class Scanned(Repository):
    """After a scan memory shows what a full re-reading at the same moments would."""

    def __init__(self) -> None:
        super().__init__()
        self.good: dict[str, tuple[str, str]] = {}
        self.owners: dict[str, str] = {}

    @rule(file=FILES, name=NAMES)
    def break_it(self, file: str, name: str) -> None:
        (self.models / file).write_text(f"type: t\nname: {name}\ndescriptoon: m0\n")

    def look(self) -> None:
        self.compare(None)

    @rule(files=st.none() | st.just(EVERY_FILE))
    def compare(self, files: list[str] | None) -> None:
        if files is None:
            self.catalog.scan()
        else:
            self.catalog.refresh(self.models / file for file in files)
        now = self.read()
        self.good = {
            file: now[file] or self.good[file] for file in now if now[file] or file in self.good
        }
        self.owners = {
            name: file
            for name, file in self.owners.items()
            if file in self.good and self.good[file][0] == name
        }
        for file in sorted(self.good, key=Path):
            self.owners.setdefault(self.good[file][0], file)
        in_force = [(one.name, one.description) for one in self.catalog.models()]
        assert in_force == sorted(self.good[file] for file in self.owners.values())
        losers = set(self.good) - set(self.owners.values())
        broken = {file for file, content in now.items() if content is None}
        troubled = [problem.path for problem in self.catalog.problems()]
        assert troubled == sorted(f"models/{file}" for file in broken | losers)


class AskedFresh(Repository):
    """A fresh look-up is right at once, though nothing told the catalog of any change."""

    @rule(name=NAMES)
    def ask(self, name: str) -> None:
        there = {content for content in self.read().values() if content and content[0] == name}
        try:
            found = self.catalog.fresh("model", name)
        except NotFound:
            assert not there
        else:
            assert (found.name, found.description) in there
            assert self.catalog.model(name) is found


@dataclass
class Good:
    """The last good version of a file."""

    name: str
    id: str
    description: str


IDS = {mark: f"{mark * 8}-fb49-425e-9803-525237cd9c47" for mark in "abc"}


def _model(name: str, mark: str, text: str) -> str:
    return f"type: t\nname: {name}\nid: {IDS[mark]}\ndescription: m{text}\n"


class ManyAtOnce(RuleBasedStateMachine):
    """Names and ids that clash in every way: what is in force is what a full scan would say.

    The full scan is the definition of it: all claims, those who had something first, then by path;
    who finds neither name nor id taken is in force.
    """

    def __init__(self) -> None:
        super().__init__()
        self.folder = tempfile.TemporaryDirectory()
        self.models = Path(self.folder.name) / "models"
        self.models.mkdir()
        real = Index(Path(self.folder.name) / "index.db", ())
        self.index = DefinitionIndex(real, threading.Lock())
        self.clock = FileClock()
        self.catalog = Catalog(Path(self.folder.name), clock=self.clock, index=self.index)
        self.good: dict[str, Good] = {}
        self.names: dict[str, str] = {}
        self.ids: dict[str, str] = {}

    def teardown(self) -> None:
        self.folder.cleanup()

    @rule(number=st.integers(0, 7), name=NAMES, mark=st.sampled_from("abc"), text=MARKS)
    def write(self, number: int, name: str, mark: str, text: str) -> None:
        self._file(number).write_text(_model(name, mark, text))

    @rule(number=st.integers(0, 7), name=NAMES, mark=st.sampled_from("abc"), text=MARKS)
    def rewrite_unseen(self, number: int, name: str, mark: str, text: str) -> None:
        if there := sorted(self.models.iterdir()):
            rewrite_unseen(there[number % len(there)], _model(name, mark, text))

    @rule(number=st.integers(0, 7), other=st.integers(0, 7))
    def rename(self, number: int, other: int) -> None:
        if self._file(number).exists():
            os.replace(self._file(number), self._file(other))

    @rule(number=st.integers(0, 7))
    def delete(self, number: int) -> None:
        self._file(number).unlink(missing_ok=True)

    def _file(self, number: int) -> Path:
        return self.models / f"{number}.yaml"

    @rule()
    def settle(self) -> None:
        """From here on every file is told by its stat alone, and the index may have it."""
        with self.clock.settled(Path(self.folder.name)):
            self.scan()

    @rule()
    def start_anew(self) -> None:
        """By the paths alone, whichever of the files the index knows."""
        self.catalog.keep()
        self.catalog = Catalog(Path(self.folder.name), clock=self.clock, index=self.index)
        self.catalog.load()
        self.names, self.ids = {}, {}
        self._compare()

    @rule()
    def scan(self) -> None:
        self.catalog.scan()
        self._compare()

    def _compare(self) -> None:
        self.good = {}
        for path in sorted(self.models.iterdir()):
            _, name, id, text = (line.partition(": ")[2] for line in path.read_text().splitlines())
            self.good[path.name] = Good(name, id, text)
        self._decide()
        expected = {name: self.good[file] for name, file in self.names.items()}
        assert {
            one.name: Good(one.name, one.id, str(one.description)) for one in self.catalog.models()
        } == expected
        for name, file in self.names.items():
            assert self.catalog.model(self.good[file].id).name == name
        losers = sorted(set(self.good) - set(self.names.values()))
        assert [one.path for one in self.catalog.problems()] == [f"models/{one}" for one in losers]

    def _decide(self) -> None:
        def rank(file: str) -> tuple[int, str]:
            good = self.good[file]
            held = (self.names.get(good.name) == file) + (self.ids.get(good.id) == file)
            return -held, file

        order = sorted(self.good, key=rank)
        self.names, self.ids = {}, {}
        for file in order:
            good = self.good[file]
            if good.name not in self.names and good.id not in self.ids:
                self.names[good.name] = self.ids[good.id] = file


quick = settings(max_examples=60, stateful_step_count=25, deadline=None)
TestScanned = Scanned.TestCase
TestScanned.settings = quick
TestAskedFresh = AskedFresh.TestCase
TestAskedFresh.settings = quick
TestManyAtOnce = ManyAtOnce.TestCase
TestManyAtOnce.settings = quick
