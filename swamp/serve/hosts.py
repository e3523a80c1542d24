"""By which names a server without access tokens is asked: those of this machine alone.

Such a server listens here only, so that nobody from elsewhere reaches it. But a web page's name may
be made to lead here after the page was loaded (DNS rebinding): its browser takes the server for the
page's own, and lets it read and ask whatever it likes. The name that the browser asked for stays in
`Host`. Where everybody has to bring a credential, the page gains nothing, and any name will do.
"""

from __future__ import annotations

import ipaddress
import re

from aiohttp import web
from aiohttp.typedefs import Middleware

from swamp.serve.access import is_open
from swamp.serve.answers import ApiError, Handler, as_text

_HOST = re.compile(r"(\[[^\]]*\]|[^:\[\]]*)(:\d*)?", re.ASCII)


def of_this_machine(own: str) -> Middleware:
    """A middleware that refuses requests for other hosts than this machine, or `own` (`--host`).

    Not those that are for everybody, or bring a credential of their own. A request without a Host
    is of no browser.
    """

    @web.middleware
    async def checked(request: web.Request, handler: Handler) -> web.StreamResponse:
        asked = request.headers.getall("Host", [])
        if is_open(request) or all(is_here(host, own) for host in asked):
            return await handler(request)
        raise ApiError(
            403,
            "unknown_host",
            f"the request is for the host '{as_text(', '.join(asked))}', and without access tokens"
            " this server answers for this machine alone, as a web page could have its own name"
            " lead here: ask 127.0.0.1 or localhost, or start it with --auth token, or with"
            " --insecure if a proxy in front sees to who may ask",
        )

    return checked


def is_here(host: str, own: str) -> bool:
    """Whether a `Host` header names this machine's loopback, or is `own`, with any port."""
    parts = _HOST.fullmatch(host.strip())
    if parts is None:
        return False
    name = parts[1].removeprefix("[").removesuffix("]").lower().removesuffix(".")
    if name == own.lower() or name == "localhost" or name.endswith(".localhost"):
        return True
    try:
        return ipaddress.ip_address(name).is_loopback
    except ValueError:
        return False
