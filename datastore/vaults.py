"""Vaults: the settings in `vaults/<type>/<name>.yaml` say that there is one, `secrets` holds it.

Both are needed: a secret of a vault without its file is out of reach.
"""

from __future__ import annotations

from datetime import datetime

from datastore.errors import NotFound
from datastore.layout import Layout
from datastore.record import is_record_name
from datastore.repository_init import VAULT_TYPES
from datastore.secrets import Secrets


class Vaults:
    """The vaults of a repository. Every method blocks: use a thread. NotFound without the vault."""

    def __init__(self, layout: Layout) -> None:
        self._layout = layout
        self._secrets = Secrets(layout)

    def names(self) -> list[str]:
        """The vaults that there are, sorted."""
        return sorted(
            path.stem
            for vault_type in VAULT_TYPES
            for path in (self._layout.vaults / vault_type).glob("*.yaml")
        )

    def type_of(self, vault: str) -> str:
        """The type of a vault."""
        for vault_type in VAULT_TYPES:
            if not is_record_name(vault):
                break
            if (self._layout.vaults / vault_type / f"{vault}.yaml").is_file():
                return vault_type
        names = self.names()
        there = f"vaults: {', '.join(names)}" if names else "there is none yet"
        raise NotFound(
            f"no vault '{vault}' ({there}): create it with"
            f" `swamp vault create {VAULT_TYPES[0]} {vault}`"
        )

    def get(self, vault: str, key: str) -> str:
        """A secret; NotFound, InvalidSecret."""
        self.type_of(vault)
        try:
            return self._secrets.get(vault, key)
        except NotFound:
            advice = f"put it there with `swamp vault put {vault} {key}`"
            raise NotFound(f"vault '{vault}' has no secret '{key}': {advice}") from None

    def put(self, vault: str, key: str, value: str, now: datetime) -> bool:
        """Store a secret; whether there was one before. InvalidSecret."""
        self.type_of(vault)
        return self._secrets.put(vault, key, value, now)

    def keys(self, vault: str) -> list[str]:
        """The names of a vault's secrets, sorted."""
        self.type_of(vault)
        return self._secrets.names(vault)

    def remove(self, vault: str, key: str) -> None:
        """Forget a secret; NotFound without it."""
        self.type_of(vault)
        self._secrets.remove(vault, key)
