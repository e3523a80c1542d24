"""Removing what steps leave behind, also what they have closed to their own user."""

from __future__ import annotations

import os
import shutil
from contextlib import suppress


def remove_tree(folder: str | os.PathLike[str]) -> None:
    """Remove the folder with all that is in it, as far as that can be done. Blocks.

    A folder in which nothing may be written or found is opened: Go keeps its modules in such ones.
    """
    shutil.rmtree(folder, ignore_errors=True)
    if not os.path.lexists(folder):
        return
    _open(folder)
    for parent, names, _ in os.walk(folder):
        for name in names:
            # Before the walk comes to it. What a link leads to is no part of the folder.
            _open(os.path.join(parent, name))
    shutil.rmtree(folder, ignore_errors=True)


def _open(folder: str | os.PathLike[str]) -> None:
    if not os.path.islink(folder):
        with suppress(OSError):
            os.chmod(folder, 0o700)
