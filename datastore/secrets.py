"""Secrets at rest: `.swamp/secrets/<vault>/<key>.json`, AES-256-GCM, outside git.

Vault and key name are authenticated with the text, so that a file moved under another name does not
open. Plain values exist in memory only, and only where a step names them.
"""

from __future__ import annotations

import base64
import hashlib
import json
import os
import re
from datetime import datetime
from pathlib import Path

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from datastore import files
from datastore.clock import stamp
from datastore.errors import DatastoreError, NotFound
from datastore.key_file import derive, load_or_make
from datastore.layout import Layout
from datastore.regular_file import read_bytes

VALUE_MAX_BYTES = 64 << 10
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}\Z")
_NONCE_BYTES = 12


class InvalidSecret(DatastoreError):
    """A secret that cannot be stored or opened."""


class Secrets:
    """The secrets of a repository. Every method blocks: use a thread."""

    def __init__(self, layout: Layout) -> None:
        self._layout = layout
        key = derive(load_or_make(layout), "vault")
        self._cipher = AESGCM(key)
        self._key_id = hashlib.sha256(key).hexdigest()[:16]

    def put(self, vault: str, key: str, value: str, now: datetime) -> bool:
        """Store a value; whether one was there before. InvalidSecret says what is wrong with it."""
        path = self._path(vault, key)
        data = value.encode()
        if not data or len(data) > VALUE_MAX_BYTES:
            raise InvalidSecret(
                f"the value of '{key}' has {len(data)} bytes, expected 1 to {VALUE_MAX_BYTES}"
            )
        nonce = os.urandom(_NONCE_BYTES)
        sealed = self._cipher.encrypt(nonce, data, _bound_to(vault, key))
        document = {
            "version": 1,
            "keyId": self._key_id,
            "updatedAt": stamp(now),
            "sealed": base64.b64encode(nonce + sealed).decode(),
        }
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        existed = path.exists()
        files.write(path, json.dumps(document).encode())
        path.chmod(0o600)
        return existed

    def get(self, vault: str, key: str) -> str:
        """The plain value; NotFound, or InvalidSecret if it was sealed with another key."""
        path = self._path(vault, key)
        try:
            document = json.loads(read_bytes(path))
            data = base64.b64decode(document["sealed"])
        except FileNotFoundError:
            raise NotFound(f"vault '{vault}' has no secret '{key}'") from None
        except (ValueError, KeyError, TypeError):
            raise InvalidSecret(f"{self._layout.shown(path)} is damaged") from None
        try:
            opened = self._cipher.decrypt(
                data[:_NONCE_BYTES], data[_NONCE_BYTES:], _bound_to(vault, key)
            )
        except InvalidTag:
            raise InvalidSecret(
                f"secret '{key}' of vault '{vault}' does not open: it was sealed with another key,"
                " or its file was moved or changed"
            ) from None
        return opened.decode()

    def names(self, vault: str) -> list[str]:
        """The keys of a vault, sorted."""
        folder = self._folder(vault)
        if not folder.is_dir():
            return []
        return sorted(path.stem for path in folder.glob("*.json") if not path.name.startswith("."))

    def remove(self, vault: str, key: str) -> None:
        """Forget a secret; NotFound without it."""
        try:
            self._path(vault, key).unlink()
        except FileNotFoundError:
            raise NotFound(f"vault '{vault}' has no secret '{key}'") from None

    def _folder(self, vault: str) -> Path:
        if not _NAME.match(vault):
            raise InvalidSecret(f"'{vault}' cannot name a vault")
        return self._layout.private / "secrets" / vault

    def _path(self, vault: str, key: str) -> Path:
        if not _NAME.match(key):
            raise InvalidSecret(
                f"'{key}' cannot name a secret: letters, digits, '.', '_' and '-' only,"
                " the first one a letter or digit"
            )
        return self._folder(vault) / f"{key}.json"


def _bound_to(vault: str, key: str) -> bytes:
    return f"{vault}/{key}".encode()
