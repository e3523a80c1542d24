"""Where things lie in a repository: the one place that knows folder and file names.

`Layout` names paths, and tells whether the root is still the folder that is held; `create_folders`
makes what is missing; `find_root` finds the repository that a command was started in.
"""

from __future__ import annotations

import errno
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from datastore.errors import NoRepository

if TYPE_CHECKING:
    from datastore.root_folder import RootFolder

MARKER = ".swamp.yaml"
IGNORE_ALL = "*\n!.gitignore\n"
KEEP_FOLDER = "# Keeps this folder in git while it is empty.\n"
_FOLDER_NAME_MAX = 200
_UNSAFE = re.compile(r"^\.|[^A-Za-z0-9@._-]")


@dataclass(frozen=True, slots=True)
class Layout:
    """The paths of the repository at `root`."""

    root: Path
    held: RootFolder | None = field(default=None, compare=False, repr=False)
    """The very folder, where its lock is held."""

    def expect_root(self) -> None:
        """OSError where `root` is not the folder that is held, or is another's by now. Blocks."""
        if self.held is not None:
            self.held.expect()
            self.expect_not_taken()

    def root_is_here(self) -> bool:
        """Whether `root` is still the folder that is held, and no other's. Blocks."""
        held = self.held
        return held is None or (held.is_here() and not held.is_locked_anew())

    def expect_not_taken(self) -> None:
        """OSError where another process serves the folder that is held, or is about to. Blocks."""
        held = self.held
        if held is not None and (held.taken or (held.is_locked_anew() and held.is_here())):
            raise OSError(errno.ESTALE, "another process serves this folder", str(self.root))

    @property
    def marker(self) -> Path:
        return self.root / MARKER

    @property
    def models(self) -> Path:
        return self.root / "models"

    @property
    def workflows(self) -> Path:
        return self.root / "workflows"

    @property
    def vaults(self) -> Path:
        return self.root / "vaults"

    @property
    def datastore(self) -> Path:
        return self.root / "datastore"

    @property
    def history(self) -> Path:
        return self.datastore / "history"

    @property
    def private(self) -> Path:
        return self.root / ".swamp"

    @property
    def journal(self) -> Path:
        return self.private / "journal.db"

    @property
    def index(self) -> Path:
        return self.private / "index.db"

    @property
    def lock(self) -> Path:
        return self.private / "lock"

    @property
    def alive(self) -> Path:
        return self.private / "alive"

    @property
    def socket(self) -> Path:
        return self.private / "serve.sock"

    @property
    def events(self) -> Path:
        return self.private / "events"

    @property
    def logs(self) -> Path:
        return self.private / "logs"

    @property
    def temps(self) -> Path:
        """Where files of `observed/` are written before they are put in their place."""
        return self.private / "tmp"

    @property
    def data(self) -> Path:
        return self.private / "data"

    @property
    def key(self) -> Path:
        return self.private / "key"

    def desired(self, kind: str) -> Path:
        """The folder of what people ask of the records of a kind, by the kind's folder name."""
        return self.datastore / "desired" / kind

    def observed(self, kind: str) -> Path:
        """The folder of the records of a kind, by the kind's folder name."""
        return self.datastore / "observed" / kind

    def record_file(self, kind: str, name: str) -> Path:
        """The file of one record."""
        return self.datastore / "observed" / kind / f"{name}.yaml"

    def story_file(self, workflow: str, run: str) -> Path:
        """The write-once file of a finished run."""
        return self.history / folder_name(workflow) / f"{run}.yaml"

    def shown(self, path: Path) -> str:
        """`path` as messages show it: relative to the root where it lies below."""
        return str(path.relative_to(self.root)) if path.is_relative_to(self.root) else str(path)


def folder_name(workflow: str) -> str:
    """A workflow's name as one folder's: `@scope/name` is `@scope%2Fname`, never a way out.

    Very long names are cut; two workflows may then share a folder, but run ids keep files apart.
    """
    safe = _UNSAFE.sub(lambda found: "".join(f"%{b:02X}" for b in found[0].encode()), workflow)
    return safe[:_FOLDER_NAME_MAX] or "%"


def create_folders(layout: Layout) -> None:
    """Make every folder of the repository that is missing; existing ones stay as they are."""
    # Here, as commands that only ask a server need a layout, but no kinds.
    from datastore.files import ensure_ignored
    from datastore.kinds import KINDS

    for folder in (layout.models, layout.workflows, layout.vaults, layout.history):
        make_folder(layout, folder)
    for folder in (layout.private, layout.events, layout.logs, layout.data, layout.temps):
        make_folder(layout, folder, 0o700)
    for kind in KINDS:
        for path, text in (
            (layout.observed(kind), IGNORE_ALL),
            (layout.desired(kind), KEEP_FOLDER),
        ):
            make_folder(layout, path)
            ensure_ignored(path, text)


def make_folder(layout: Layout, folder: Path, mode: int = 0o777) -> None:
    """Have a folder below the root, and those above it; never the root itself. OSError. Blocks."""
    layout.expect_root()
    missing = []
    while folder != layout.root and not folder.is_dir():
        missing.append(folder)
        folder = folder.parent
    for one in reversed(missing):
        one.mkdir(mode, exist_ok=True)


def find_root(start: Path) -> Path:
    """The nearest folder at or above `start` with a `.swamp.yaml`; NoRepository without one."""
    start = start.resolve()
    for folder in (start, *start.parents):
        if (folder / MARKER).is_file():
            return folder
    raise NoRepository(f"no {MARKER} in {start} or any folder above it; run `swamp init` first")
