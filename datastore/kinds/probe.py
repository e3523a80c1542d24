"""The words of probes, which server, worker and runner share; nothing else, so that it costs them
nothing to know them."""

from __future__ import annotations

PROBES = "probe"
"""What stands in place of a run in the dispatch ids of probes, which belong to none."""

PROBE_TYPE = "swamp/fleet-probe"
PROBE_MODEL = "fleet-probe"
PROBE_METHOD = "verify"
MARKER = "probeMarker"
PROBE_OUTPUT = "probe-result"
