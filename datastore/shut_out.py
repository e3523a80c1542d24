"""Whose a repository's records are, for a user whom their permissions shut out.

`.swamp/` is its server's user's alone (0700). Whoever may not look into it cannot tell whether a
server runs, what the records say, or who holds the lock: then that is said, and nothing is guessed.
"""

from __future__ import annotations

import os
from pathlib import Path

from datastore.errors import DatastoreError
from datastore.layout import Layout
from datastore.regular_file import open_handle


class ShutOut(DatastoreError):
    """This user may not look at the records; the message says whose they are, and the way out."""


def refuse_if_shut_out(layout: Layout) -> None:
    """ShutOut where `.swamp/` does not let this user in. Costs two looks at the disk."""
    closed = shut_out_of(layout.private)
    if closed is not None:
        told, way_out = closed
        raise ShutOut(f"{told}: {way_out}")


def shut_out_of(path: Path) -> tuple[str, str] | None:
    """Whose a folder or file is and what to do, for a user who may not read it; None for others."""
    verb = "look into"
    try:
        if not path.is_dir():
            verb = "read"
            os.close(open_handle(path, os.O_RDONLY))
            return None
        with os.scandir(path):
            os.stat(path / ".")
    except PermissionError:
        return _told(path, verb)
    except OSError:
        return None
    return None


def _told(path: Path, verb: str) -> tuple[str, str]:
    user = os.geteuid()
    told = f"this user (uid {user}) may not {verb} {path}"
    try:
        owner = os.stat(path).st_uid
    except OSError:
        return told, "run this as the user who runs `swamp serve`"
    if owner == user:
        return f"{told}, which is this user's own", f"give the rights back (chmod u+rwX {path})"
    name = _named(owner)
    return (
        f"{told}, which belongs to {name}",
        f"run this as {name}, or ask the server with --server URL and an access token",
    )


def owner_of(path: Path) -> str:
    """The user whose it is, as `alice (uid 1000)`."""
    try:
        return _named(os.stat(path).st_uid)
    except OSError:
        return "another user"


def _named(uid: int) -> str:
    """Without a name where this machine has none."""
    import pwd

    try:
        return f"{pwd.getpwuid(uid).pw_name} (uid {uid})"
    except KeyError:
        return f"uid {uid}"
