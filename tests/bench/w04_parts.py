"""Of W4: where the time of a burst goes, by the spans of server and worker.

Real runners on a real worker, which end at about one instant. Spans are printed to the logs: that
costs the server something, so these figures are about each part's share.
"""

from __future__ import annotations

import statistics

import fleet
import spans
from figures import Bench, Figure, percentile

COUNT = 25
PARTS = {
    "swamp.worker_execution": "worker execution (sleep 1)",
    "swamp.result_receipt": "result receipt",
    "swamp.journal_wait": "wait for the journal",
    "swamp.journal_write": "journal write",
    "swamp.settlement": "settlement, the three before",
}


def measure(bench: Bench) -> None:
    """One burst per round; of each part the median and the p95 of its spans."""
    found: dict[str, list[list[float]]] = {name: [] for name in PARTS}
    for number in range(bench.rounds):
        bench.say(f"W4 the parts of {COUNT} results, round {number + 1}")
        with fleet.site(serve=False) as site:
            site.repo.env.update(spans.SWITCH)
            site.workflow("fan", run="sleep 1")
            site.serve()
            site.worker(COUNT)
            run = site.submit("fan", COUNT)
            story = fleet.follow(site.client, run, fleet.Story(0))
            assert not story.failed, story.failed[0]
            # Spans are sent a moment after the fact; all are when the processes have ended.
            for proc in (*site.workers, site.server):
                proc.terminate()
            logs = [proc.log_path for proc in (*site.workers, site.server)]
            took = spans.durations_ms(logs, run)
        for name, each in found.items():
            assert len(took.get(name, ())) == COUNT, f"{len(took.get(name, ()))} spans of {name}"
            each.append(took[name])
    for name, what in PARTS.items():
        medians = [statistics.median(each) for each in found[name]]
        p95s = [percentile(each, 95) for each in found[name]]
        bench.add(Figure("W4", f"{COUNT} of real runners: {what}, median", "ms", medians))
        bench.add(Figure("W4", f"{COUNT} of real runners: {what}, p95", "ms", p95s))
