"""The runner of a probe: `python -m swamp.execute.probe MARKER`, started as every step is.

Puts an output with the credential of its dispatch, reads it back, and prints one line of JSON: the
marker, the platform as seen from here, and how that went. Exit code 1 if it did not go well.
"""

from __future__ import annotations

import io
import json
import os
import platform
import sys
from collections.abc import Mapping
from typing import Any

from datastore.errors import SwampError
from datastore.kinds.probe import MARKER, PROBE_OUTPUT
from swamp.upload import Patience, get_output, put_output


def report(marker: str, environment: Mapping[str, str]) -> dict[str, Any]:
    """What the probe has to tell; never raises for what is wrong with the data plane."""
    error = _data_plane_error(marker.encode(), environment)
    found = {
        MARKER: marker,
        "platform": platform.system().lower(),
        "arch": platform.machine(),
        "dataPlaneOk": error is None,
    }
    return found if error is None else {**found, "dataPlaneError": error}


def _data_plane_error(content: bytes, environment: Mapping[str, str]) -> str | None:
    """Why an output could not be put and read back; None if it could."""
    try:
        # A probe tells how it is now.
        now = Patience(most_s=0.0)
        put_output(environment, PROBE_OUTPUT, io.BytesIO(content), "text/plain", now)
        if get_output(environment, PROBE_OUTPUT) != content:
            return "what was read back is not what was put"
    except SwampError as error:
        return str(error)
    return None


if __name__ == "__main__":
    told = report(sys.argv[1], os.environ)
    print(json.dumps(told))
    sys.exit(0 if told["dataPlaneOk"] else 1)
