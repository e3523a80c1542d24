"""Commands that ask for something by a person's file: only the asked fields change in it.

Comments, order and everything else stay; a save by an editor at the same instant is never lost. A
file that does not parse is left alone and told. Blocking: use a thread.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from datastore import files
from datastore.desired import digest_of
from datastore.errors import DatastoreError
from datastore.layout import Layout
from datastore.record import API_VERSION, Kind, is_record_name
from datastore.regular_file import read_bytes
from datastore.yaml_edit import Scalar, clear_field, new_file, set_field

SWAP_ATTEMPTS = 20


class CannotAsk(DatastoreError):
    """The desired file cannot be written."""


def ask(
    layout: Layout,
    kind: Kind[Any, Any],
    name: str,
    fields: Mapping[str, Scalar | dict[str, str]],
    comment: str,
) -> str:
    """Set fields of `spec` in the desired file of a record, made if missing; its digest.

    Names as in files (`maxEnrollments`). None: where the file says something of it, that becomes
    null. InvalidFile for a file that cannot be edited safely. A mapping is written into a new file
    only: people edit those by hand.
    """
    if not is_record_name(name):
        raise CannotAsk(f"'{name}' cannot be the name of a record")
    path = layout.desired(kind.folder) / f"{name}.yaml"
    document = {
        "apiVersion": API_VERSION,
        "kind": kind.title,
        "metadata": {"name": name},
        "spec": {field: value for field, value in fields.items() if value is not None},
    }
    made = new_file(document, comment).encode()
    for _ in range(SWAP_ATTEMPTS):
        if files.write_once(path, made):
            return digest_of(made)
        if os.path.lexists(path) and files.stat_of(path) is None:
            raise CannotAsk(f"{layout.shown(path)} is no regular file: move it away and ask again")
        try:
            before = read_bytes(path)
        except FileNotFoundError:
            continue
        after = before.decode(errors="replace")
        for field, value in fields.items():
            if value is None:
                after = clear_field(after, ("spec", field), layout.shown(path))
            elif not isinstance(value, dict):
                after = set_field(after, ("spec", field), value, layout.shown(path))
        if files.swap_if_unchanged(path, after.encode(), before):
            return digest_of(after.encode())
    raise CannotAsk(f"{layout.shown(path)} is being changed by somebody else all the time")
