"""Access tokens: who may ask the server over the network, and what. Owned by the access controller.

They are not enrollment tokens: a worker cannot enroll with one, and nobody asks with the other.
"""

from __future__ import annotations

from typing import Literal

from datastore.record import Kind, Model, Record

Role = Literal["read", "run", "admin"]
"""`read`: look. `run`: also start and cancel runs. `admin`: also all that the repository's own
socket allows."""


class AccessSpec(Model):
    """What people ask of an access token (`desired/access/<name>.yaml`)."""

    role: Role
    expires_at: str
    revoked: bool = False
    note: str | None = None


class AccessStatus(Model):
    """`secret_hash` is the SHA-256 of the secret; the secret itself is stored nowhere."""

    state: Literal["active", "expired", "revoked"]
    secret_hash: str
    ended_at: str | None = None
    desired: str | None = None
    """Digest of the desired file that `spec` came from."""


Access = Record[AccessSpec, AccessStatus]

ACCESS = Kind(
    folder="access",
    title="AccessToken",
    spec=AccessSpec,
    status=AccessStatus,
    moves={
        None: frozenset({"active", "expired", "revoked"}),
        "active": frozenset({"expired", "revoked"}),
        "expired": frozenset(),
        "revoked": frozenset(),
    },
    live_states=frozenset({None, "active"}),
)
