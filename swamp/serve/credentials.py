"""The credential of a dispatch: an HMAC of its id. Nothing is stored, so a restart changes nothing.

It says who asks, not whether that may still be: the caller looks whether the dispatch lives.
"""

from __future__ import annotations

import hashlib
import hmac

from datastore.key_file import derive


class Credentials:
    """Makes and checks credentials under a key of the repository's."""

    def __init__(self, key: bytes) -> None:
        self._key = derive(key, "dispatch")

    def of(self, dispatch: str) -> str:
        """The credential of a dispatch."""
        return f"{dispatch}.{self._sign(dispatch)}"

    def dispatch_of(self, credential: str) -> str | None:
        """The dispatch whose credential this is, None if it is nobody's."""
        dispatch, _, signature = credential.rpartition(".")
        expected = self._sign(dispatch)
        return dispatch if hmac.compare_digest(signature.encode(), expected.encode()) else None

    def _sign(self, dispatch: str) -> str:
        return hmac.new(self._key, dispatch.encode("utf-8", "replace"), hashlib.sha256).hexdigest()
