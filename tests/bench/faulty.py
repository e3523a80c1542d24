"""`swamp` with faults on demand: the benchmarks start a server by this file instead.

    python faulty.py enrollment=2,upload=1,index=0.005 serve …

Each is the seconds that something takes longer, as on a slow disk: in a thread, without holding the
interpreter. Nothing of it is in the packages: this file changes them in its own process alone.

- `enrollment`: looking at the file of a token whose name begins with `slow`
- `upload`: writing each piece of an output
- `index`: looking at each definition that may have changed
"""

from __future__ import annotations

import functools
import sys
import time
from collections.abc import Callable
from typing import Any

from datastore.definitions.catalog import Catalog
from datastore.desired import DesiredTree
from datastore.outputs import Upload
from swamp.cli import main

Always = Callable[..., bool]


def slower(owner: type, method: str, delay_s: float, when: Always) -> None:
    """Have a method take so much longer when `when` holds for its arguments."""
    original: Callable[..., Any] = getattr(owner, method)

    @functools.wraps(original)
    def slowed(*arguments: Any) -> Any:
        if when(*arguments):
            time.sleep(delay_s)
        return original(*arguments)

    setattr(owner, method, slowed)


def always(*_: Any) -> bool:
    """Whatever the arguments are."""
    return True


def slow_token(_: Any, kind: Any, name: str) -> bool:
    """Whether that record is a token which is meant to be slow."""
    return bool(kind.folder == "tokens" and name.startswith("slow"))


FAULTS: dict[str, tuple[type, str, Always]] = {
    "enrollment": (DesiredTree, "refresh_record", slow_token),
    "upload": (Upload, "write", always),
    "index": (Catalog, "_look", always),
}

if __name__ == "__main__":
    for fault in sys.argv[1].split(","):
        name, _, seconds = fault.partition("=")
        owner, method, when = FAULTS[name]
        slower(owner, method, float(seconds), when)
    sys.exit(main(sys.argv[2:]))
