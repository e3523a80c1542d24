"""The environment of a runner: explicit, and never with a credential of the process around it."""

from __future__ import annotations

from collections.abc import Mapping

from swamp.protocol import DATA_TOKEN_VARIABLE, DATA_URL_VARIABLE, ships

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


def data_environment(url: str, credential: str) -> dict[str, str]:
    """What a runner needs to put outputs; nothing without a credential."""
    return {DATA_URL_VARIABLE: url, DATA_TOKEN_VARIABLE: credential} if credential else {}
