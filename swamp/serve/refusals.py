"""Why a worker may not enroll, in the words that go to it."""

from __future__ import annotations

from collections.abc import Sequence

from controllers.enrollment import EnrollmentRefused
from swamp import __version__
from swamp.protocol import PROTOCOL_VERSION, EnrollRefused

DEGRADED_AGAIN_MS = 2_000


def wrong_version(protocol: int, version: str) -> EnrollmentRefused:
    """The refusal of a worker that speaks another protocol; both are named.

    Two builds of one version may speak different ones.
    """
    return EnrollmentRefused(
        "protocol_mismatch",
        f"this worker speaks protocol {protocol} (swamp {version}), the"
        f" orchestrator protocol {PROTOCOL_VERSION} (swamp {__version__}): install the same build"
        " on both (`swamp version` shows the protocol)",
    )


def degraded(trouble: str, grace_s: float = 0.0, cancel: Sequence[str] = ()) -> EnrollmentRefused:
    """The refusal while the disk refuses writes.

    What the worker runs may go on for `grace_s`, except what it is to `cancel`.
    """
    return EnrollmentRefused(
        "degraded",
        trouble,
        permanent=False,
        retry_after_ms=DEGRADED_AGAIN_MS,
        grace_s=grace_s,
        cancel=cancel,
    )


def refusal(error: EnrollmentRefused) -> EnrollRefused:
    """The frame that tells a worker why it may not enroll."""
    return EnrollRefused(
        code=error.code,
        message=str(error),
        permanent=error.permanent,
        retry_after_ms=error.retry_after_ms,
        grace_s=error.grace_s,
        cancel=error.cancel,
    )
