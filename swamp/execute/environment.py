"""The environment of a runner: explicit, and never with a credential of the process around it."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from pathlib import Path
from sysconfig import get_path

from datastore.unicode_text import is_unicode, made_unicode
from swamp.protocol import CA_VARIABLE, DATA_TOKEN_VARIABLE, DATA_URL_VARIABLE, ships

_OWN_PREFIX = "SWAMP_"


def runner_environment(
    own: Mapping[str, str], shipped: Mapping[str, str], extra: Mapping[str, str]
) -> dict[str, str]:
    """What a runner gets: `own`, then what may ship of `shipped`, then the call's `extra`.

    Every `SWAMP_*` of `own` stays behind: tokens and addresses are the worker's, not the step's.
    """
    environment = {
        name: value for name, value in own.items() if not name.upper().startswith(_OWN_PREFIX)
    }
    environment.update((name, value) for name, value in shipped.items() if ships(name))
    environment.update(extra)
    return environment


def unicode_only(environment: Mapping[str, str]) -> tuple[dict[str, str], list[str]]:
    """The variables that a message can hold, and the names, made readable, of the others."""
    good = {
        name: value for name, value in environment.items() if is_unicode(name) and is_unicode(value)
    }
    return good, [made_unicode(name) for name in environment if name not in good]


def data_environment(url: str, credential: str, ca_cert: Path | None = None) -> dict[str, str]:
    """What a runner needs to put outputs; nothing without a credential.

    `ca_cert`: whom to trust at that address, where it is not whom the machine trusts.
    """
    if not credential:
        return {}
    environment = {DATA_URL_VARIABLE: url, DATA_TOKEN_VARIABLE: credential}
    if ca_cert is not None:
        environment[CA_VARIABLE] = str(ca_cert.absolute())
    return environment


def commands_folder() -> str | None:
    """Where the `swamp` lies that this process was called as, else that of its Python. Blocks.

    None where there is none, or its folder fits into no `PATH`.
    """
    for path in (os.path.abspath(sys.argv[0]), os.path.join(get_path("scripts"), "swamp")):
        folder, name = os.path.split(path)
        if name == "swamp" and os.path.isfile(path) and os.access(path, os.X_OK):
            return None if os.pathsep in folder else folder
    return None


def with_commands(environment: dict[str, str], folder: str | None) -> dict[str, str]:
    """The environment with that folder as the last one of its `PATH`, unless it is in there."""
    path = environment.get("PATH", os.defpath)
    if folder is None or folder in (one.rstrip(os.sep) for one in path.split(os.pathsep)):
        return environment
    return {**environment, "PATH": f"{path}{os.pathsep}{folder}"}
