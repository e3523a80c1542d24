"""What a server is told about itself."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from controllers.retention import Keep
from swamp.serve.data_plane import OUTPUT_MAX_BYTES


@dataclass(frozen=True, slots=True)
class ServeOptions:
    """What `swamp serve` was asked for. Times in seconds."""

    root: Path
    host: str = "127.0.0.1"
    port: int = 9090
    queue_timeout_s: float | None = None
    """None: not given; 0: for ever."""
    grace_s: float = 60.0
    recover_leases_s: float | None = None
    """How long workers of an earlier process have to come back; 0 ends their leases at once."""
    schedule: bool = True
    insecure: bool = False
    tls: tuple[Path, Path] | None = None
    """Certificate and key, PEM; None: plain HTTP."""
    auth: bool = False
    """Whether requests over the network need an access token."""
    file_events: bool = True
    """Without them people's edits are found by the rescan alone."""
    keep: Keep = field(default_factory=Keep)
    verify_on_enroll: bool = False
    """Whether workers get steps only once a probe of them has passed."""
    output_max_bytes: int = OUTPUT_MAX_BYTES
    """The most that one output of a step may have."""
    only_run: str | None = None
    """The id of the one run of this process; every other record stays as it is."""
