"""`swamp vault create | put | list | rm`. Secrets are never in what git sees.

They are read when a step that names them is dispatched, so a server that runs needs no word of a
change.
"""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from swamp.cli.command import Help, command, group
from swamp.cli.console import Console

app = group("Vaults hold the secrets that steps need.")


@command(
    app,
    "create",
    Help(
        "Create a vault: vaults/<type>/<name>.yaml with its settings, no secrets.",
        ("swamp vault create local_encryption main",),
    ),
)
def create(
    console: Console,
    vault_type: Annotated[
        str, typer.Argument(metavar="TYPE", help="The type of vault: local_encryption.")
    ],
    name: Annotated[str, typer.Argument(help="The vault's name.")] = "main",
    config: Annotated[
        str, typer.Option("--config", metavar="JSON", help="Settings, a JSON object.")
    ] = "{}",
) -> None:
    from datastore.clock import SystemClock
    from datastore.repository_init import create_vault, parse_config

    layout = console.layout()
    made = create_vault(layout, vault_type, name, parse_config(config), SystemClock().now())
    document = {
        "id": made["id"],
        "name": name,
        "type": vault_type,
        "config": made["config"],
        "typeName": "Local encryption",
        "path": f"vaults/{vault_type}/{name}.yaml",
    }
    console.show(document, [f"Created vault {name} ({vault_type}) in {document['path']}"])


VaultName = Annotated[str, typer.Argument(metavar="VAULT", help="The vault's name.")]
KeyName = Annotated[str, typer.Argument(metavar="KEY", help="The secret's name.")]
SHORTEST_MASKED = 4


@command(
    app,
    "put",
    Help(
        "Store a secret; its value comes from stdin, or from a prompt that does not show it.\n\n"
        "Steps use it as ${{ vault.get('VAULT', 'KEY') }}. One newline at the end of stdin is left "
        "out.",
        ("swamp vault put main API_KEY < key.txt", "swamp vault put main API_KEY"),
    ),
)
def put(console: Console, vault: VaultName, key: KeyName) -> None:
    from datastore.clock import SystemClock, stamp
    from datastore.vaults import Vaults
    from swamp.cli.hidden_argument import hide

    key, is_given, value = key.partition("=")
    if is_given:
        hide(value)
        console.note(
            "Warning: a value on the command line stays in the shell's history: leave it out and "
            "it is asked for, or comes from stdin"
        )
    vaults, now = Vaults(console.layout()), SystemClock().now()
    vault_type = vaults.type_of(vault)
    if not is_given:
        value = _asked(vault, key)
    overwritten = vaults.put(vault, key, value, now)
    if len(value) < SHORTEST_MASKED:
        console.note(
            f"Warning: {key} has fewer than {SHORTEST_MASKED} characters: it cannot be masked in "
            "output and logs"
        )
    document = {
        "vaultName": vault,
        "secretKey": key,
        "vaultType": vault_type,
        "overwritten": overwritten,
        "timestamp": stamp(now),
    }
    console.show(document, [f"{'Replaced' if overwritten else 'Stored'} {key} in vault {vault}"])


@command(
    app,
    "list",
    Help(
        "Show the names of a vault's secrets, never their values.",
        ("swamp vault list main", "swamp vault list main --json"),
    ),
)
def list_keys(console: Console, vault: VaultName) -> None:
    from datastore.vaults import Vaults

    vaults = Vaults(console.layout())
    keys = vaults.keys(vault)
    document = {
        "vaultName": vault,
        "vaultType": vaults.type_of(vault),
        "secretKeys": keys,
        "count": len(keys),
    }
    console.show(document, keys or [f"Vault {vault} holds no secrets"])


@command(app, "rm", Help("Remove a secret.", ("swamp vault rm main API_KEY",)))
def remove(console: Console, vault: VaultName, key: KeyName) -> None:
    from datastore.vaults import Vaults

    Vaults(console.layout()).remove(vault, key)
    document = {"vaultName": vault, "secretKey": key, "removed": True}
    console.show(document, [f"Removed {key} from vault {vault}"])


def _asked(vault: str, key: str) -> str:
    """The value from stdin, or from a prompt where a person sits."""
    from datastore.secrets import VALUE_MAX_BYTES, InvalidSecret

    if sys.stdin.isatty():
        return str(typer.prompt(f"Value of {key} for vault {vault}", hide_input=True, err=True))
    data = sys.stdin.buffer.read(VALUE_MAX_BYTES + 2)
    try:
        text = data.decode()
    except UnicodeDecodeError:
        raise InvalidSecret(f"the value of '{key}' is not text in UTF-8") from None
    return text.removesuffix("\n").removesuffix("\r")


def declare(parent: typer.Typer) -> None:
    """Add the group to another one."""
    parent.add_typer(app, name="vault")
