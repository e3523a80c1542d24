"""What the shell offers after Tab: names of workflows and models, ids of runs, names of
tokens and workers.

Taken from file names and the first lines of files; never slow, and never an error: whatever cannot
be read is not offered.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from pathlib import Path

OFFERED_MOST = 200
FILES_MOST = 2_000
HEAD_BYTES = 4096
"""How much of a definition is read to find its name."""

_NAME = re.compile(rb"^name:[ \t]*([\"']?)([^\r\n#]+?)\1[ \t]*(?:#.*)?$", re.MULTILINE)

Complete = Callable[[str], list[str]]


def workflow_names(incomplete: str) -> list[str]:
    """Names of workflows that begin so."""
    return _offered(lambda root: _definitions(root / "workflows"), incomplete)


def model_names(incomplete: str) -> list[str]:
    """Names of models that begin so."""
    return _offered(lambda root: _definitions(root / "models"), incomplete)


def run_ids(incomplete: str) -> list[str]:
    """Ids of runs that begin so, the newest first."""
    return _offered(lambda root: _records(root, "runs"), incomplete)


def token_names(incomplete: str) -> list[str]:
    """Names of enrollment tokens that begin so."""
    return _offered(lambda root: sorted(_records(root, "tokens")), incomplete)


def worker_names(incomplete: str) -> list[str]:
    """Names of workers that begin so."""
    return _offered(lambda root: sorted(_records(root, "workers")), incomplete)


def _offered(find: Callable[[Path], list[str]], incomplete: str) -> list[str]:
    from datastore.errors import NoRepository
    from datastore.layout import find_root

    try:
        found = find(find_root(Path(os.environ.get("SWAMP_REPO_DIR") or Path.cwd())))
    except (OSError, NoRepository):
        return []
    return [name for name in found if name.startswith(incomplete)][:OFFERED_MOST]


def _definitions(folder: Path) -> list[str]:
    names = set()
    for number, path in enumerate(folder.rglob("*.yaml")):
        if number == FILES_MOST:
            break
        name = _name_in(path)
        if name is not None:
            names.add(name)
    return sorted(names)


def _name_in(path: Path) -> str | None:
    from datastore.regular_file import open_to_read

    try:
        with open_to_read(path) as file:
            found = _NAME.search(file.read(HEAD_BYTES))
    except OSError:
        return None
    return None if found is None else found[2].decode(errors="replace")


def _records(root: Path, kind: str) -> list[str]:
    """Names of records, the last one in the alphabet first: ids of runs begin with their time."""
    names = os.listdir(root / "datastore" / "observed" / kind)
    return sorted((name[:-5] for name in names if name.endswith(".yaml")), reverse=True)
