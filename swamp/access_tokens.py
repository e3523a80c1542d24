"""Access tokens made, listed and revoked: the record and the person's file, both.

The server's API and the commands of a stopped server do the same here. The plain secret exists in
the answer only; what is stored is a hash.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from controllers.access import create_access, revoke_access
from controllers.asked import desired_file
from datastore.clock import parse_stamp, stamp
from datastore.errors import AlreadyExists
from datastore.ids import uuid7
from datastore.kinds import ACCESS, Access, AccessSpec, Role
from datastore.layout import Layout
from datastore.store import Store
from swamp.tokens import DesiredToken, check_name, create_file, new_secret, say_revoked

_COMMENT = (
    "What is asked of this access token; see `swamp access token list`.\n"
    "Set `revoked: true` in spec to end it, for good. Deleting this file changes nothing."
)


@dataclass(frozen=True, slots=True)
class AccessRequest:
    """An access token to make. `duration_s` is how long it is good for, seconds."""

    name: str
    role: Role
    duration_s: float
    note: str | None = None


async def create(
    store: Store, layout: Layout, request: AccessRequest, now: datetime
) -> dict[str, Any]:
    """`{name, role, token, expiresAt}`, durable; the only time the secret is shown.

    InvalidToken, AlreadyExists, OSError where the file cannot be written.
    """
    name = request.name
    check_name(name)
    if store.find(ACCESS, name) is not None:
        raise AlreadyExists(f"access token '{name}' is there already; choose another name")
    expires_at = stamp(now + timedelta(seconds=request.duration_s))
    spec = AccessSpec(role=request.role, expires_at=expires_at, note=request.note)
    asked = {key: value for key, value in spec.document().items() if key != "revoked"}
    # The file comes first: a name that a person has taken refuses the token before it exists.
    await asyncio.to_thread(create_file, DesiredToken(layout, ACCESS, name), asked, _COMMENT)
    secret = new_secret()
    create_access(store, name, spec, secret, (uuid7(now, random.SystemRandom()), now))
    await store.barrier()
    return {
        "name": name,
        "role": spec.role,
        "token": f"{name}.{secret}",
        "expiresAt": expires_at,
    }


async def revoke(store: Store, layout: Layout, name: str, now: datetime) -> dict[str, Any]:
    """`{name, state, revokedAt?, alreadyRevoked}`, durable. Ends are final. NotFound."""
    access, is_new = revoke_access(store, name, now)
    await store.barrier()
    if is_new:
        await asyncio.to_thread(say_revoked, DesiredToken(layout, ACCESS, name))
    assert access.status is not None
    answer = {"name": name, "state": access.status.state, "alreadyRevoked": not is_new}
    if access.status.state == "revoked":
        answer["revokedAt"] = access.status.ended_at
    return answer


def access_list(tokens: Iterable[Access], now: datetime) -> list[dict[str, Any]]:
    """The access tokens by name, without anything of their secrets."""
    return [_view(one, now) for one in sorted(tokens, key=lambda one: one.name) if one.status]


def _view(access: Access, now: datetime) -> dict[str, Any]:
    status = access.status
    assert status is not None
    expired = access.live and parse_stamp(access.spec.expires_at) <= now
    view = {
        "name": access.name,
        "role": access.spec.role,
        "state": "expired" if expired else status.state,
        "createdAt": access.created_at,
        "expiresAt": access.spec.expires_at,
        "endedAt": status.ended_at,
        "note": access.spec.note,
        "desiredFile": desired_file(status.desired),
    }
    return {key: value for key, value in view.items() if value is not None}
