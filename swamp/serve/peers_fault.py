"""What a peer did wrong is its own business: one line at debug level, and no traceback.

aiohttp tells of a request that is no HTTP as of an error of ours; whoever can reach the port could
fill the log with that.
"""

from __future__ import annotations

import logging

from aiohttp.http_exceptions import HttpProcessingError
from aiohttp.web import RequestPayloadError

LINE_MOST = 200
"""Characters of what is wrong that a line shows; the error quotes the peer."""

log = logging.getLogger(__name__)
"""For aiohttp to log to, about requests."""


def _made_small(record: logging.LogRecord) -> bool:
    """Whether it is logged; what a peer did wrong becomes a line of a lower level before."""
    error = record.exc_info[1] if record.exc_info else None
    if not isinstance(error, HttpProcessingError | RequestPayloadError):
        return True
    record.levelno, record.levelname = logging.DEBUG, logging.getLevelName(logging.DEBUG)
    why = " ".join(str(error).split())[:LINE_MOST]
    record.msg, record.args = "%s: %s", (record.getMessage(), why)
    record.exc_info = None
    return log.isEnabledFor(logging.DEBUG)


log.addFilter(_made_small)
