"""What people do to a repository while it is served: they edit, and they tidy up."""

from __future__ import annotations

import itertools
import random
import threading
from collections.abc import Callable
from pathlib import Path

import fleet

from datastore.errors import SwampError
from swamp.client import Client, ServerError

EVERY_S = 0.1
FORGET_EVERY = 20
"""Of that many edits, one round of forgetting workers that are away."""

BROKEN = "name: broken\njobs: [\n"

CORDON = """# {number}
spec:
  schedulable: {schedulable}
"""

MODEL = """# {number}
type: command/shell
name: passing-{number}
methods:
  execute:
    arguments: {{run: "true"}}
"""


class People:
    """A thread that edits until it is told to stop; `done` counts by what was done."""

    def __init__(self, site: fleet.Site, keep: set[str], seed: int) -> None:
        self.done: dict[str, int] = {}
        self._site, self._keep = site, keep
        self._dice = random.Random(seed)
        self._numbers = itertools.count(1)
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._edit, daemon=True)

    def __enter__(self) -> People:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()
        self._cordon(0)
        for path in (*self._passing(), self._broken):
            path.unlink(missing_ok=True)

    @property
    def admin(self) -> Client:
        """A client on the repository's own socket."""
        return Client(self._site.repo.path / ".swamp" / "serve.sock")

    def forget_absent(self) -> int:
        """Forget all workers that are away and owe nothing; how many went."""
        admin = self.admin
        gone = 0
        for worker in admin.get("/api/v1/workers?all=1")["workers"]:
            if worker["status"] != "disconnected" or worker["name"] in self._keep:
                continue
            try:
                admin.post(f"/api/v1/workers/{worker['name']}/forget", {})
                gone += 1
            except ServerError as error:
                if error.code not in ("worker_in_use", "not_found"):
                    raise
        return gone

    def _edit(self) -> None:
        edits: list[Callable[[int], None]] = [
            self._remark, self._add_model, self._drop_model, self._break, self._mend, self._cordon,
        ]  # fmt: skip
        while not self._over.wait(EVERY_S):
            number = next(self._numbers)
            if number % FORGET_EVERY == 0:
                try:
                    self._count("forgot", self.forget_absent())
                except SwampError:
                    self._count("no server")
                continue
            edit = self._dice.choice(edits)
            edit(number)
            self._count(edit.__name__.strip("_"))

    def _count(self, what: str, more: int = 1) -> None:
        self.done[what] = self.done.get(what, 0) + more

    def _remark(self, number: int) -> None:
        path = self._site.repo.path / "workflows" / "fan.yaml"
        text = path.read_text().partition("\n# ")[0].rstrip()
        self._save(path, f"{text}\n# {number}\n")

    def _add_model(self, number: int) -> None:
        self._save(self._models / f"{number}.yaml", MODEL.format(number=number))

    def _drop_model(self, _: int) -> None:
        for path in self._passing()[:1]:
            path.unlink()

    def _break(self, _: int) -> None:
        self._broken.write_text(BROKEN)

    def _mend(self, _: int) -> None:
        self._broken.unlink(missing_ok=True)

    def _cordon(self, number: int) -> None:
        path = self._site.repo.path / "datastore" / "desired" / "workers" / "real-1.yaml"
        schedulable = "false" if number % 2 else "true"
        self._save(path, CORDON.format(number=number, schedulable=schedulable))

    def _passing(self) -> list[Path]:
        return sorted(self._models.glob("*.yaml"))

    @property
    def _models(self) -> Path:
        folder = self._site.repo.path / "models" / "command" / "passing"
        folder.mkdir(parents=True, exist_ok=True)
        return folder

    @property
    def _broken(self) -> Path:
        return self._site.repo.path / "workflows" / "broken.yaml"

    @staticmethod
    def _save(path: Path, text: str) -> None:
        """As an editor does: beside it, then in its place."""
        fresh = path.with_name(f".{path.name}.new")
        fresh.write_text(text)
        fresh.rename(path)
