"""Outputs of steps: `.swamp/data/<model>/<name>/<version>/{raw,meta.json}`, versioned, immutable.

Promises: a version is there whole and durable, or not at all; none is ever written again. An upload
collects in a folder of its own, which becomes the next version by one rename; whoever comes second
for a number takes the next one. Every method blocks: use a thread.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import threading
import uuid
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, BinaryIO

from datastore.errors import DatastoreError, NotFound
from datastore.files import opened
from datastore.layout import Layout, folder_name, make_folder
from datastore.plain_values import Unfit, from_json
from datastore.regular_file import NO_FILE_MORE, read_bytes

OUTPUT_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}\Z")
CONTENT_MAX_BYTES = 1 << 20
"""Bytes of an output that `content` gives."""

DEFAULT_TYPE = "application/octet-stream"
_INCOMING = ".incoming"
_MODEL_MAX = 150
"""Characters of a model's folder; longer names could share one."""


class InvalidOutput(DatastoreError):
    """An output that cannot be stored under this name, or not be given as asked."""


@dataclass(frozen=True, slots=True)
class Origin:
    """Which dispatch wrote an output, of which step."""

    model: str
    run: str
    job: str
    step: str
    dispatch: str


@dataclass(frozen=True, slots=True)
class StoredOutput:
    """One version. `size` in bytes."""

    name: str
    version: int
    size: int
    sha256: str
    created_at: str
    content_type: str
    origin: Origin


class Upload:
    """One output on its way; `keep` or `discard` ends it."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(mode=0o700)
        self.folder = folder
        self.size = 0
        self._hash = hashlib.sha256()
        try:
            self._file: BinaryIO = (folder / "raw").open("xb")
        except OSError:
            folder.rmdir()
            raise

    def write(self, data: bytes) -> None:
        """Append to the output."""
        self._file.write(data)
        self._hash.update(data)
        self.size += len(data)

    def finish(self) -> str:
        """Have all bytes on disk; their SHA-256 in hex."""
        self._file.flush()
        os.fsync(self._file.fileno())
        self._file.close()
        return self._hash.hexdigest()

    def discard(self) -> None:
        """Leave nothing of it."""
        with suppress(OSError):
            # What it has not written yet may find no room.
            self._file.close()
        shutil.rmtree(self.folder, ignore_errors=True)


class OutputFiles:
    """The outputs of a repository on disk. Whoever writes calls `load` first, once."""

    def __init__(self, layout: Layout) -> None:
        self._layout = layout
        self._incoming = layout.data / _INCOMING
        self._latest: dict[Path, int] | None = None
        self._turn = threading.Lock()

    # -- writing ---------------------------------------------------------------------------------

    def load(self) -> None:
        """Learn the latest versions, so that no folder is scanned later, and clear up.

        What uploads of an earlier process left is removed: only the holder of the repository's
        lock may call this.
        """
        shutil.rmtree(self._incoming, ignore_errors=True)
        latest = dict[Path, int]()
        for model in self._folders(self._layout.data):
            # What cannot be read is told to whoever asks for it.
            with suppress(InvalidOutput):
                for name in self._folders(Path(model.path)):
                    folder = Path(name.path)
                    with suppress(InvalidOutput):
                        latest[folder] = max(self._numbers(folder), default=0)
        self._latest = latest

    def begin(self) -> Upload:
        """A new upload."""
        make_folder(self._layout, self._incoming, 0o700)
        return Upload(self._incoming / uuid.uuid4().hex)

    def keep(
        self, upload: Upload, origin: Origin, name: str, content_type: str, created_at: str
    ) -> StoredOutput:
        """Make the upload the next version, durably. InvalidOutput for a name that cannot be."""
        digest = upload.finish()
        meta = {
            "sha256": digest,
            "size": upload.size,
            "createdAt": created_at,
            "contentType": content_type,
            **asdict(origin),
        }
        with (upload.folder / "meta.json").open("xb") as file:
            file.write(json.dumps(meta).encode())
            file.flush()
            os.fsync(file.fileno())
        _sync(upload.folder)
        version = self._place(upload.folder, self._folder(origin.model, name))
        return StoredOutput(name, version, upload.size, digest, created_at, content_type, origin)

    def _place(self, made: Path, folder: Path) -> int:
        """Rename to the next free number below `folder`, durably."""
        make_folder(self._layout, folder, 0o700)
        version = self._latest_in(folder) + 1
        with ExitStack() as stack:
            # Before the rename: afterwards there may be no file more to be opened.
            above = (folder, folder.parent, self._layout.data)
            handles = [stack.enter_context(opened(one)) for one in above]
            while True:
                try:
                    # Onto a folder that is not empty this fails: no version is ever replaced.
                    made.rename(folder / str(version))
                    break
                except OSError:
                    if not (folder / str(version)).exists():
                        raise
                    version += 1
            try:
                for handle in handles:
                    os.fsync(handle)
            except OSError:
                (folder / str(version)).rename(made)
                raise
        if self._latest is not None:
            with self._turn:
                self._latest[folder] = max(version, self._latest.get(folder, 0))
        return version

    def _latest_in(self, folder: Path) -> int:
        """The latest version in an output's folder, 0 without any."""
        if self._latest is not None:
            return self._latest.get(folder, 0)
        return max(self._numbers(folder), default=0)

    def remove(self, stored: StoredOutput) -> None:
        """Take back a version that nobody was told of."""
        folder = self._folder(stored.origin.model, stored.name)
        shutil.rmtree(folder / str(stored.version), ignore_errors=True)
        with self._turn, suppress(InvalidOutput, OSError):
            if self._latest is not None and self._latest.get(folder) == stored.version:
                self._latest[folder] = max(self._numbers(folder), default=0)

    # -- reading ---------------------------------------------------------------------------------

    def names(self, model: str) -> list[str]:
        """The outputs that a model has, sorted."""
        return sorted(
            entry.name
            for entry in self._folders(self._model_folder(model))
            if OUTPUT_NAME.match(entry.name) and any(self._numbers(Path(entry.path)))
        )

    def versions(self, model: str, name: str) -> list[int]:
        """The versions of an output, ascending; NotFound without any."""
        found = sorted(self._numbers(self._folder(model, name)))
        if not found:
            raise self._none(model, name)
        return found

    def _none(self, model: str, name: str) -> NotFound:
        names = ", ".join(self.names(model))
        there = f"it has: {names}" if names else "it has none yet"
        return NotFound(f"model '{model}' has no output '{name}'; {there}")

    def read(self, model: str, name: str, version: int | None = None) -> StoredOutput:
        """What is known of a version, the latest if None; NotFound without it."""
        latest = self._latest_in(self._folder(model, name))
        if not latest:
            raise self._none(model, name)
        return self._read(model, name, latest if version is None else version)

    def _read(self, model: str, name: str, number: int) -> StoredOutput:
        path = self._folder(model, name) / str(number) / "meta.json"
        try:
            meta: dict[str, Any] = json.loads(self._bytes(path))
            return StoredOutput(
                name=name,
                version=number,
                size=meta["size"],
                sha256=meta["sha256"],
                created_at=meta["createdAt"],
                content_type=meta["contentType"],
                origin=Origin(**{part: meta[part] for part in Origin.__slots__}),
            )
        except FileNotFoundError:
            raise NotFound(f"output '{name}' of model '{model}' has no version {number}") from None
        except (ValueError, KeyError, TypeError):
            raise InvalidOutput(f"{self._layout.shown(path)} is damaged") from None

    def _bytes(self, path: Path) -> bytes:
        """What a file of a version holds; OSError where it can be had a moment later."""
        try:
            return read_bytes(path)
        except FileNotFoundError:
            raise
        except OSError as error:
            raise self._unreadable(path, error) from None

    def _numbers(self, folder: Path) -> Iterator[int]:
        """The versions in an output's folder."""
        return (int(one.name) for one in self._folders(folder) if one.name.isdecimal())

    def _folders(self, folder: Path) -> list[os.DirEntry[str]]:
        """The folders in one, none where that is not there; errors as `_bytes`."""
        try:
            with os.scandir(folder) as entries:
                return [entry for entry in entries if entry.is_dir(follow_symlinks=False)]
        except (FileNotFoundError, NotADirectoryError):
            return []
        except OSError as error:
            raise self._unreadable(folder, error) from None

    def _unreadable(self, path: Path, error: OSError) -> Exception:
        if error.errno in NO_FILE_MORE:
            return error
        return InvalidOutput(f"{self._layout.shown(path)} cannot be read: {error.strerror}")

    def raw(self, stored: StoredOutput) -> Path:
        """The file with the bytes of a version."""
        folder = self._folder(stored.origin.model, stored.name)
        return folder / str(stored.version) / "raw"

    def copy(self, stored: StoredOutput, target: Path) -> None:
        """Write the bytes of a version to a file of the person's; OSError where that fails."""
        shutil.copyfile(self.raw(stored), target)

    def content(self, model: str, name: str, version: int | None = None) -> Any:
        """The value of a version: parsed JSON, else text. NotFound, InvalidOutput.

        Text is parsed unless its content type says that it is text.
        """
        stored = self.read(model, name, version)
        if stored.size > CONTENT_MAX_BYTES:
            raise InvalidOutput(
                f"output '{name}' of model '{model}' has {stored.size} bytes, expressions take at"
                f" most {CONTENT_MAX_BYTES}: use `swamp data get {model} {name}`"
            )
        raw = self.raw(stored)
        try:
            data = self._bytes(raw)
        except FileNotFoundError:
            raise InvalidOutput(f"{self._layout.shown(raw)} is gone") from None
        try:
            text = data.decode()
        except UnicodeDecodeError:
            raise InvalidOutput(
                f"output '{name}' of model '{model}' is not text:"
                f" use `swamp data get {model} {name}`"
            ) from None
        if stored.content_type.startswith("text/"):
            return text
        try:
            return from_json(text)
        except Unfit as error:
            raise InvalidOutput(f"output '{name}' of model '{model}': {error}") from None
        except ValueError:
            return text

    def of_models(self, models: set[str]) -> Iterator[StoredOutput]:
        """Every version of the outputs of these models; damaged ones are left out."""
        for model in sorted(models):
            with suppress(InvalidOutput):
                for name in sorted(one.name for one in self._folders(self._model_folder(model))):
                    yield from self._of_name(model, name)

    def _of_name(self, model: str, name: str) -> Iterator[StoredOutput]:
        with suppress(InvalidOutput):
            for number in sorted(self._numbers(self._folder(model, name))):
                with suppress(InvalidOutput, NotFound):
                    yield self._read(model, name, number)

    def _model_folder(self, model: str) -> Path:
        folder = folder_name(model)
        if len(folder) > _MODEL_MAX:
            raise InvalidOutput(f"the name of model '{model[:40]}…' is too long to have outputs")
        return self._layout.data / folder

    def _folder(self, model: str, name: str) -> Path:
        if not OUTPUT_NAME.match(name):
            raise InvalidOutput(
                f"'{name[:80]}' cannot name an output: at most 64 letters, digits, '.', '_' and"
                " '-', the first one a letter or digit"
            )
        return self._model_folder(model) / name


def _sync(folder: Path) -> None:
    with opened(folder) as handle:
        os.fsync(handle)
