"""Making a repository and what belongs in it, without touching what is there already.

Everything here may be done twice: the second time changes nothing.
"""

from __future__ import annotations

import uuid
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any, Literal

from datastore import files
from datastore.clock import stamp
from datastore.errors import AlreadyExists, DatastoreError
from datastore.layout import Layout, create_folders
from datastore.marker import marker_text, refuse_newer
from datastore.plain_values import Unfit, from_json
from datastore.record import is_record_name
from datastore.regular_file import read_bytes
from datastore.yaml_emitter import emit
from datastore.yaml_loader import load

VAULT_TYPES = ("local_encryption",)
_IGNORED = (b".swamp", b".swamp/", b"/.swamp", b"/.swamp/")
_SWAP_ATTEMPTS = 5
_IGNORE_LINES = "# What swamp keeps for itself: journal, keys, data, logs.\n.swamp/\n"

GitignoreAction = Literal["created", "updated", "unchanged"]


class InvalidVault(DatastoreError):
    """A vault of that type, name or configuration cannot be made."""


@dataclass(frozen=True, slots=True)
class Initialized:
    """What `initialize` found or made."""

    root: Path
    initialized_at: str
    is_new: bool
    gitignore: GitignoreAction


def initialize(root: Path, now: datetime) -> Initialized:
    """Make the folder a repository; whatever is missing is added, nothing else is touched.

    OSError where the folder cannot be written, InvalidFile for one of a later swamp.
    """
    refuse_newer(Layout(root.resolve()))
    root.mkdir(parents=True, exist_ok=True)
    layout = Layout(root.resolve())
    create_folders(layout)
    ignore = _ignore(layout.root / ".gitignore")
    # The marker comes last: a half-made folder is no repository yet.
    is_new = files.write_once(layout.marker, marker_text(now).encode())
    at = stamp(now) if is_new else _initialized_at(layout)
    return Initialized(layout.root, at, is_new, ignore)


def create_vault(
    layout: Layout, vault_type: str, name: str, config: dict[str, Any], now: datetime
) -> dict[str, Any]:
    """Write `vaults/<type>/<name>.yaml` (settings, no secrets) and return its document.

    InvalidVault for what cannot be one, AlreadyExists if the name is taken.
    """
    if vault_type not in VAULT_TYPES:
        known = ", ".join(VAULT_TYPES)
        raise InvalidVault(f"unknown vault type '{vault_type}'; types: {known}")
    if not is_record_name(name):
        raise InvalidVault(
            f"'{name}' cannot name a vault: letters, digits, '.', '_' and '-' only, "
            "the first one a letter or digit"
        )
    document = {
        "id": str(uuid.uuid4()),
        "name": name,
        "type": vault_type,
        "config": config,
        "createdAt": stamp(now),
    }
    path = layout.vaults / vault_type / f"{name}.yaml"
    path.parent.mkdir(parents=True, exist_ok=True)
    if not files.write_once(path, emit(document).encode()):
        raise AlreadyExists(f"vault '{name}' is there already: {layout.shown(path)}")
    return document


def _ignore(path: Path) -> GitignoreAction:
    """Have the line in the person's file; a save at the same instant is never lost."""
    if files.write_once(path, _IGNORE_LINES.encode()):
        return "created"
    path = path.resolve()
    for _ in range(_SWAP_ATTEMPTS):
        before = read_bytes(path)
        if any(line.strip() in _IGNORED for line in before.splitlines()):
            return "unchanged"
        separator = b"" if before.endswith(b"\n") or not before else b"\n"
        if files.swap_if_unchanged(path, before + separator + _IGNORE_LINES.encode(), before):
            return "updated"
    raise DatastoreError(f"{path} keeps changing; add the line '.swamp/' to it and try again")


def _initialized_at(layout: Layout) -> str:
    document = load(read_bytes(layout.marker), layout.shown(layout.marker)).value
    return str(document.get("initializedAt", ""))


def parse_config(text: str) -> dict[str, Any]:
    """A vault's configuration given as JSON; InvalidVault for anything but an object."""
    try:
        config = from_json(text)
    except Unfit as error:
        raise InvalidVault(f"in --config, {error}") from None
    except ValueError as error:
        raise InvalidVault(f"--config is not JSON: {error}") from None
    if not isinstance(config, dict):
        raise InvalidVault(f"--config must be a JSON object, e.g. '{{}}', found {text}")
    return config
