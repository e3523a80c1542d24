"""Whatever happens to the files, the catalog agrees with a plain re-reading of all of them."""

import os
import tempfile
from pathlib import Path

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, rule

from datastore.definitions import Catalog
from datastore.errors import NotFound

FILES = st.sampled_from(["a.yaml", "b.yaml", "deep/c.yaml", "deep/d.yaml"])
NAMES = st.sampled_from(["w", "x", "y", "z"])
MARKS = st.sampled_from("0123456789")


class Repository(RuleBasedStateMachine):
    """Model files that change in every way that files do."""

    def __init__(self) -> None:
        super().__init__()
        self.folder = tempfile.TemporaryDirectory()
        self.models = Path(self.folder.name) / "models"
        (self.models / "deep").mkdir(parents=True)
        self.catalog = Catalog(Path(self.folder.name))

    def teardown(self) -> None:
        self.folder.cleanup()

    @rule(file=FILES, name=NAMES, mark=MARKS)
    def write(self, file: str, name: str, mark: str) -> None:
        (self.models / file).write_text(f"type: t\nname: {name}\ndescription: m{mark}\n")

    @rule(file=FILES, name=NAMES, mark=MARKS)
    def rewrite_within_one_tick(self, file: str, name: str, mark: str) -> None:
        path = self.models / file
        if path.exists():
            stamp = path.stat().st_mtime_ns
            self.write(file, name, mark)
            os.utime(path, ns=(stamp, stamp))

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

    @rule(files=st.none() | st.just(["a.yaml", "b.yaml", "deep/c.yaml", "deep/d.yaml"]))
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


quick = settings(max_examples=60, stateful_step_count=25, deadline=None)
TestScanned = Scanned.TestCase
TestScanned.settings = quick
TestAskedFresh = AskedFresh.TestCase
TestAskedFresh.settings = quick
