"""What a dial shows of who dials, before a word is said on its socket: see `calling_card`.

It decides who waits where and gives way to whom, and nothing else: who may enroll, the enrollment
finds out. It costs one look at a token and at a worker, however many of them there are.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum

from controllers.token_secret import is_proof
from datastore.kinds import TOKENS, WORKERS
from datastore.store import Store


class Standing(IntEnum):
    """How much a dial shows."""

    STRANGER = 0
    """Nothing that anybody could not say."""
    HOLDER = 1
    """It has the secret of a token that is in force."""
    KNOWN = 2
    """That, and it is a worker that was here before."""


@dataclass(frozen=True, slots=True)
class Caller:
    """Who dials. `worker`: the name of a known one."""

    standing: Standing
    worker: str = ""


STRANGER = Caller(Standing.STRANGER)


class Callers:
    """Knows them by the records."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def who(self, names: str, proof: str) -> Caller:
        """By the headers of a dial, both "" where they are missing."""
        token_name, _, machine_name = (part.strip() for part in names.partition(","))
        token = self._store.find(TOKENS, token_name)
        if token is None or token.status is None or not token.live:
            return STRANGER
        if not is_proof(proof, token.status.secret_hash, names):
            return STRANGER
        name = token_name if token.spec.max_enrollments == 1 else machine_name
        worker = self._store.find(WORKERS, name)
        if worker is None or worker.status is None or worker.status.token != token_name:
            return Caller(Standing.HOLDER)
        return Caller(Standing.KNOWN, name)
