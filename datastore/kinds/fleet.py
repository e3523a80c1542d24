"""Workers and the tokens they enroll with."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from datastore.record import Kind, Model, Record

Labels = dict[str, str]


class WorkerSpec(Model):
    """What people ask of a worker (`desired/workers/<name>.yaml`)."""

    schedulable: bool = True
    drain: bool = False
    """Finish what runs and leave; so, too, whenever it enrolls while this is asked."""
    note: str | None = None


class WorkerStatus(Model):
    """What the worker said at its last enrollment, whether its socket is there, and whether it has
    been shown to work."""

    state: Literal["unverified", "connected", "disconnected"]
    draining: bool = False
    instance: str
    machine: str
    token: str
    labels: Labels = Field(default_factory=dict)
    platform: str
    arch: str
    version: str
    capacity: int = Field(ge=1)
    enrolled_at: str
    last_seen_at: str
    disconnected_at: str | None = None
    verified_at: str | None = None
    """When a probe of this process last passed."""
    verify_failure: str | None = None
    """Why its last probe did not pass."""
    desired: str | None = None
    """Digest of the desired file that `spec` came from."""


class TokenSpec(Model):
    """What people ask of a token (`desired/tokens/<name>.yaml`)."""

    expires_at: str
    max_enrollments: int | Literal["unlimited"] = 1
    revoked: bool = False
    note: str | None = None


class TokenStatus(Model):
    """`secret_hash` is the SHA-256 of the secret; the secret itself is stored nowhere."""

    state: Literal["unused", "enrolled", "expired", "revoked"]
    secret_hash: str
    enrollments: int = 0
    """How many machines the token has bound; each binding is a worker record."""
    ended_at: str | None = None
    desired: str | None = None


Worker = Record[WorkerSpec, WorkerStatus]
Token = Record[TokenSpec, TokenStatus]

WORKERS = Kind(
    folder="workers",
    title="Worker",
    spec=WorkerSpec,
    status=WorkerStatus,
    moves={
        None: frozenset({"unverified", "connected", "disconnected"}),
        "unverified": frozenset({"connected", "disconnected"}),
        "connected": frozenset({"unverified", "disconnected"}),
        "disconnected": frozenset({"unverified", "connected"}),
    },
    live_states=frozenset({"unverified", "connected"}),
)

TOKENS = Kind(
    folder="tokens",
    title="EnrollmentToken",
    spec=TokenSpec,
    status=TokenStatus,
    moves={
        None: frozenset({"unused", "enrolled", "expired", "revoked"}),
        "unused": frozenset({"enrolled", "expired", "revoked"}),
        "enrolled": frozenset({"unused", "expired", "revoked"}),
        "expired": frozenset(),
        "revoked": frozenset(),
    },
    live_states=frozenset({None, "unused", "enrolled"}),
)
