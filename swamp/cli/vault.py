"""`swamp vault create`: settings of a vault. Secrets are never in the repository."""

from __future__ import annotations

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
