"""The repository's own key: 32 random bytes in `.swamp/key`, readable by the owner alone.

Everything that needs a secret of the server's derives its own from it, so that one use can never
be turned into another. It is made at the first need; losing it loses the vaults.
"""

from __future__ import annotations

import os
import secrets

from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from datastore.errors import DatastoreError
from datastore.layout import Layout, make_folder
from datastore.regular_file import read_bytes

KEY_BYTES = 32


class InvalidKey(DatastoreError):
    """The key file is not what it should be."""


def load_or_make(layout: Layout) -> bytes:
    """The key; made if there is none. Blocking. InvalidKey if the file is damaged."""
    if not layout.key.exists():
        place(layout, secrets.token_bytes(KEY_BYTES))
    key = read_bytes(layout.key)
    if len(key) != KEY_BYTES:
        raise InvalidKey(
            f"{layout.shown(layout.key)} holds {len(key)} bytes, expected {KEY_BYTES}: restore it"
            " from a backup; without it no secret of the vaults can be read"
        )
    return key


def place(layout: Layout, key: bytes) -> None:
    """Put the key into its file, durably, unless there is one already. Blocking."""
    make_folder(layout, layout.private, 0o700)
    beside = layout.private / f".key-{os.getpid()}-{secrets.token_hex(4)}"
    descriptor = os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        os.write(descriptor, key)
        os.fsync(descriptor)
        # Whoever comes second finds the key of the first.
        os.link(beside, layout.key)
    except FileExistsError:
        pass
    finally:
        os.close(descriptor)
        beside.unlink()


def derive(key: bytes, purpose: str) -> bytes:
    """32 bytes for one purpose, unrelated to those for any other."""
    return HKDF(hashes.SHA256(), KEY_BYTES, salt=None, info=purpose.encode()).derive(key)
