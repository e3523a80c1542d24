"""`.swamp.yaml`, the file that makes a folder a repository: its text, and its version."""

from __future__ import annotations

from datetime import datetime

from datastore.clock import stamp
from datastore.errors import InvalidFile
from datastore.layout import Layout
from datastore.regular_file import read_bytes

VERSION = 1
_HEAD = f"""\
# The folder that holds this file is a swamp repository.
version: {VERSION}
initializedAt: """
_REST = """\
# Settings of `swamp serve` here; options on the command line win. Remove the # to set one.
# serve:
#   host: 127.0.0.1
#   port: 9090
#   queueTimeout: 10m  # How long a step waits for a worker that fits; 0 waits for ever.
#   grace: 60s         # How long a worker that lost its connection may take to come back.
#   outputLimit: 1GiB  # The most that one output of a step may have.

# Records of finished runs that are kept; their stories stay in datastore/history/ for good.
# retention:
#   keepRuns: 500
#   keepFor: 30d       # After a run's end; 0, or nothing, keeps them for ever.
"""


def marker_text(now: datetime) -> str:
    """The file as `swamp init` writes it."""
    from datastore.yaml_emitter import emit_scalar

    return f"{_HEAD}{emit_scalar(stamp(now))}\n\n{_REST}"


def refuse_newer(layout: Layout) -> None:
    """InvalidFile for a repository that a later swamp made: this one must not touch its records.

    A marker that cannot be read is told by whoever needs the settings in it.
    """
    shown = layout.shown(layout.marker)
    try:
        text = read_bytes(layout.marker)
        if text.startswith(_HEAD.encode()):
            # Its own words: nobody has to load the parser of YAML to know this version.
            return
        from datastore.yaml_loader import load

        document = load(text, shown)
    except (OSError, InvalidFile):
        return
    version = document.value.get("version", VERSION)
    if isinstance(version, int | float) and version > VERSION:
        known = f"version {version} of a repository is newer than this swamp knows ({VERSION})"
        raise InvalidFile(shown, f"{known}: upgrade swamp", document.position("version"))
    if type(version) is not int or version != VERSION:
        problem = f"version is {version!r}, expected {VERSION}"
        raise InvalidFile(shown, problem, document.position("version"))
