"""Tells the orchestrator that a worker has died, so that its leases need not wait for it.

Standard library only, for the guard loads it. A report that does not arrive costs time alone: then
the leases end with the grace window.
"""

from __future__ import annotations

import http.client
import json
import os
import ssl
import time
from contextlib import suppress
from urllib.parse import urlsplit

TELL_FOR_S = 5.0
"""How long it is tried; a server that restarts is back within that."""
TRY_WITHIN_S = 2.0
RETRY_S = 0.2


def report_death(url: str, instance: str, credential: str) -> bool:
    """Report it; False when no server has answered in time."""
    body = json.dumps({"instance": instance, "credential": credential})
    end = time.monotonic() + TELL_FOR_S
    while time.monotonic() < end:
        with suppress(OSError, http.client.HTTPException):
            if _post(url, body) < 500:
                return True
        time.sleep(RETRY_S)
    return False


def _post(url: str, body: str) -> int:
    parts = urlsplit(url)
    connection = http.client.HTTPConnection(parts.netloc, timeout=TRY_WITHIN_S)
    if parts.scheme == "https":
        trust = ssl.create_default_context(cafile=os.environ.get("SWAMP_CA_CERT"))
        connection = http.client.HTTPSConnection(parts.netloc, timeout=TRY_WITHIN_S, context=trust)
    try:
        connection.request("POST", parts.path, body, {"Content-Type": "application/json"})
        return connection.getresponse().status
    finally:
        connection.close()
