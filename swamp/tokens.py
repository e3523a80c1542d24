"""Enrollment tokens made and revoked: the record and the person's file, both.

The server's API and the commands of a stopped server do the same here. The plain secret exists in
the answer only; what is stored is a hash.
"""

from __future__ import annotations

import asyncio
import random
import secrets
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any, Literal

from controllers.enrollment import Made, create_token, revoke_token
from datastore import files
from datastore.clock import stamp
from datastore.errors import AlreadyExists, DatastoreError, InvalidFile
from datastore.ids import uuid7
from datastore.kinds import TOKENS, TokenSpec
from datastore.layout import Layout
from datastore.plain_values import INT_MAX
from datastore.record import API_VERSION, NAME_MAX_BYTES, Kind, is_record_name
from datastore.regular_file import read_bytes
from datastore.store import Store
from datastore.yaml_edit import new_file, set_field

SECRET_BYTES = 32
SWAP_ATTEMPTS = 5
"""How often a save by an editor at the same instant is given way to."""

_COMMENT = (
    "What is asked of this enrollment token; see `swamp worker token list`.\n"
    "Set `revoked: true` in spec to end it, for good. Deleting this file changes nothing."
)


class InvalidToken(DatastoreError):
    """A token of that name or with those limits cannot be made."""


@dataclass(frozen=True, slots=True)
class TokenRequest:
    """A token to make. `duration_s` is how long it lets workers enroll, seconds."""

    name: str
    duration_s: float
    max_enrollments: int | Literal["unlimited"] = 1


async def create(
    store: Store, layout: Layout, request: TokenRequest, now: datetime
) -> dict[str, Any]:
    """`{name, token, expiresAt, maxEnrollments}`, durable; the only time the secret is shown.

    InvalidToken, AlreadyExists, OSError where the file cannot be written.
    """
    name, most = request.name, request.max_enrollments
    check_name(name)
    if most != "unlimited" and most < 1:
        raise InvalidToken(f"a token lets at least 1 machine enroll, not {most}")
    if most != "unlimited" and most > INT_MAX:
        raise InvalidToken(f"so many machines can never enroll ({most}): say unlimited")
    if store.find(TOKENS, name) is not None:
        raise AlreadyExists(f"token '{name}' is there already; choose another name")
    spec = TokenSpec(
        expires_at=stamp(now + timedelta(seconds=request.duration_s)), max_enrollments=most
    )
    # The file comes first: a name that a person has taken refuses the token before it exists.
    asked = {"expiresAt": spec.expires_at, "maxEnrollments": spec.max_enrollments}
    await asyncio.to_thread(create_file, DesiredToken(layout, TOKENS, name), asked, _COMMENT)
    secret = new_secret()
    made = Made(uuid7(now, random.SystemRandom()), now)
    create_token(store, name, spec, secret, made)
    await store.barrier()
    return {
        "name": name,
        "token": f"{name}.{secret}",
        "expiresAt": spec.expires_at,
        "maxEnrollments": most,
    }


async def revoke(store: Store, layout: Layout, name: str, now: datetime) -> dict[str, Any]:
    """`{name, state, revokedAt?, alreadyRevoked}`, durable. Ends are final. NotFound."""
    token, is_new = revoke_token(store, name, now)
    await store.barrier()
    if is_new:
        await asyncio.to_thread(say_revoked, DesiredToken(layout, TOKENS, name))
    assert token.status is not None
    answer = {"name": name, "state": token.status.state, "alreadyRevoked": not is_new}
    if token.status.state == "revoked":
        answer["revokedAt"] = token.status.ended_at
    return answer


def check_name(name: str) -> None:
    """InvalidToken for a name that no token can have."""
    if len(name.encode()) > NAME_MAX_BYTES:
        raise InvalidToken(
            f"'{name[:40]}…' cannot name a token: it has {len(name.encode())} bytes, at most "
            f"{NAME_MAX_BYTES} fit"
        )
    # The first dot ends the name in `<name>.<secret>`.
    if "." in name or not is_record_name(name):
        raise InvalidToken(
            f"'{name}' cannot name a token: letters, digits, '_' and '-' only, "
            "the first one a letter or digit"
        )


def new_secret() -> str:
    """256 random bits as text."""
    return secrets.token_hex(SECRET_BYTES)


@dataclass(frozen=True, slots=True)
class DesiredToken:
    """The person's file of a token of either kind."""

    layout: Layout
    kind: Kind[Any, Any]
    name: str

    @property
    def path(self) -> Path:
        return self.layout.desired(self.kind.folder) / f"{self.name}.yaml"

    @property
    def shown(self) -> str:
        return self.layout.shown(self.path)


def create_file(file: DesiredToken, spec: dict[str, Any], comment: str) -> None:
    """Write the file; AlreadyExists if there is one. Blocks."""
    document = {
        "apiVersion": API_VERSION,
        "kind": file.kind.title,
        "metadata": {"name": file.name},
        "spec": spec,
    }
    if not files.write_once(file.path, new_file(document, comment).encode()):
        raise AlreadyExists(
            f"{file.shown} is there already: choose another name, or remove that file"
        )


def say_revoked(file: DesiredToken) -> None:
    """Set `revoked: true` in the file, keeping all else; without a file nothing is done. Blocks.

    A file that does not parse, or is none, stays as it is: its problem is shown where all such
    are, and the token is revoked whatever the file says.
    """
    with suppress(FileNotFoundError, InvalidFile, UnicodeDecodeError):
        for _ in range(SWAP_ATTEMPTS):
            if files.stat_of(file.path) is None:
                return
            before = read_bytes(file.path)
            after = set_field(before.decode(), ("spec", "revoked"), True, file.shown)
            if files.swap_if_unchanged(file.path, after.encode(), before):
                return
