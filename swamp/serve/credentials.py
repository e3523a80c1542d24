"""Credentials that are an HMAC of an id. Nothing is stored, so a restart changes nothing.

They say who asks, not whether that may still be: the caller looks whether the dispatch lives.
"""

from __future__ import annotations

import hashlib
import hmac

from datastore.key_file import derive


class Credentials:
    """Makes and checks credentials under a key of the repository's."""

    def __init__(self, key: bytes) -> None:
        self._of_dispatches = _hmac(derive(key, "dispatch"))
        self._of_deaths = _hmac(derive(key, "death"))

    def of(self, dispatch: str) -> str:
        """The credential of a dispatch."""
        return f"{dispatch}.{self._sign(dispatch)}"

    def dispatch_of(self, credential: str) -> str | None:
        """The dispatch whose credential this is, None if it is nobody's."""
        dispatch, _, signature = credential.rpartition(".")
        return dispatch if _same(signature, self._sign(dispatch)) else None

    def of_death(self, worker: str, instance: str) -> str:
        """What the process `instance` of a worker leaves behind to prove that it has died."""
        return _signed(self._of_deaths, f"death/{worker}/{instance}")

    def proves_death(self, credential: str, worker: str, instance: str) -> bool:
        """Whether the credential is that of this process of this worker."""
        return _same(credential, self.of_death(worker, instance))

    def _sign(self, dispatch: str) -> str:
        return _signed(self._of_dispatches, dispatch)


def _hmac(key: bytes) -> hmac.HMAC:
    return hmac.new(key, digestmod=hashlib.sha256)


def _signed(keyed: hmac.HMAC, text: str) -> str:
    # Unlike `hmac.digest`, a copy does not give the interpreter away, which threads wait for.
    copy = keyed.copy()
    copy.update(text.encode("utf-8", "replace"))
    return copy.hexdigest()


def _same(given: str, expected: str) -> bool:
    # Bytes: texts that are not ASCII cannot be compared.
    return hmac.compare_digest(given.encode("utf-8", "replace"), expected.encode())
