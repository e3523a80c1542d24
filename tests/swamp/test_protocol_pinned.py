"""All frames and the environment denylist, pinned to `PROTOCOL_VERSION`.

`protocol_pinned.json` shows what the version of that number means. Run this file to write it anew;
it refuses to give an old number a new meaning.
"""

from __future__ import annotations

import asyncio
import json
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, get_args

import pytest

from controllers.enrollment import EnrollmentController, EnrollmentRefused
from controllers.lease import LeaseController
from datastore.journal import Op
from datastore.kinds import KINDS, WORKERS
from datastore.store import Store
from swamp import __version__, protocol
from swamp.protocol import PROTOCOL_VERSION, Enroll
from swamp.serve.refusals import refusal
from swamp.serve.sessions import Rules, Sessions

PINNED = Path(__file__).parent / "protocol_pinned.json"


def snapshot() -> dict[str, Any]:
    """What both ends must agree on; words that only people read are left out."""
    frames = {
        direction: {
            frame.model_fields["type"].default: _plain(frame.model_json_schema(by_alias=True))
            for frame in get_args(union)
        }
        for direction, union in (
            ("fromWorker", protocol.FromWorker),
            ("toWorker", protocol.ToWorker),
        )
    }
    return {
        "protocol": PROTOCOL_VERSION,
        "frames": frames,
        "environmentDenylist": sorted(protocol.ENVIRONMENT_DENYLIST),
        "environmentDeniedPrefixes": sorted(protocol.ENVIRONMENT_DENIED_PREFIXES),
    }


def _plain(schema: Any) -> Any:
    """A JSON schema without titles and descriptions of its own; fields may have such names."""
    if isinstance(schema, list):
        return [_plain(one) for one in schema]
    if not isinstance(schema, dict):
        return schema
    found = {}
    for key, value in schema.items():
        if key in ("properties", "$defs"):
            found[key] = {name: _plain(one) for name, one in value.items()}
        elif key not in ("title", "description"):
            found[key] = _plain(value)
    return found


def changed(pinned: dict[str, Any], now: dict[str, Any]) -> list[str]:
    """What is not as it was, in words."""
    found = [key for key in now if key.startswith("environment") and now[key] != pinned[key]]
    for direction, frames in now["frames"].items():
        before = pinned["frames"][direction]
        names = sorted(frames.keys() | before.keys())
        found += [f"{direction} {n}" for n in names if frames.get(n) != before.get(n)]
    return found


def problem(pinned: dict[str, Any], now: dict[str, Any]) -> str | None:
    """What is to be done, None if the pinned file is as it must be."""
    news = ", ".join(changed(pinned, now))
    number, before = now["protocol"], pinned["protocol"]
    if news and number == before:
        return (
            f"changed without a new protocol version: {news}. Both ends may be of different age:"
            f" raise PROTOCOL_VERSION in swamp/protocol.py to {before + 1}, then run"
            " `python tests/swamp/test_protocol_pinned.py`"
        )
    if number != before:
        what = news or "nothing else: is the new number needed?"
        return (
            f"PROTOCOL_VERSION is {number}, pinned is {before} (changed: {what}): run"
            " `python tests/swamp/test_protocol_pinned.py`"
        )
    return None


def test_frames_and_denylist_are_those_of_the_protocol_version() -> None:
    assert problem(json.loads(PINNED.read_text()), snapshot()) is None


def test_every_frame_is_pinned() -> None:
    frames = snapshot()["frames"]
    assert len(frames["fromWorker"]) == len(get_args(protocol.FromWorker))
    assert len(frames["toWorker"]) == len(get_args(protocol.ToWorker))
    assert "call" in frames["toWorker"]["dispatch"]["properties"]


def _without_a_field(now: dict[str, Any]) -> None:
    del now["frames"]["toWorker"]["dispatch"]["properties"]["call"]


def _with_a_frame(now: dict[str, Any]) -> None:
    now["frames"]["fromWorker"]["hello"] = {}


def _with_a_name(now: dict[str, Any]) -> None:
    now["environmentDenylist"].append("EDITOR")


CHANGES = {
    "toWorker dispatch": _without_a_field,
    "fromWorker hello": _with_a_frame,
    "environmentDenylist": _with_a_name,
}


@pytest.mark.parametrize("what", CHANGES)
def test_a_change_of_one_without_the_other_says_what_to_do(what: str) -> None:
    pinned, now = snapshot(), snapshot()
    CHANGES[what](now)
    said = problem(pinned, now)
    assert said is not None
    assert f"changed without a new protocol version: {what}." in said
    assert f"raise PROTOCOL_VERSION in swamp/protocol.py to {PROTOCOL_VERSION + 1}" in said
    now["protocol"] += 1
    assert f"PROTOCOL_VERSION is {PROTOCOL_VERSION + 1}" in str(problem(pinned, now))
    assert problem(now, now) is None


def test_words_for_people_are_no_part_of_it() -> None:
    assert '"description"' not in json.dumps(snapshot())


# -- a worker of another version -----------------------------------------------------------------


class _Journal:
    trouble = None

    def append(self, ops: tuple[Op, ...], on_durable: Any = None) -> None:
        if on_durable is not None:
            on_durable()


class _Clock:
    def now(self) -> datetime:
        return datetime(2026, 11, 29, tzinfo=UTC)


class _NoOutput:
    def output_count(self, run: str, dispatch: str) -> int:
        return 0

    def output(self, *told: Any) -> None: ...


class _Wire:
    def send(self, text: str) -> None:
        pytest.fail(f"a refused worker is sent {text}")

    def abort(self, reason: str) -> None: ...


async def _fresh(token: str) -> None:
    pytest.fail("its token is looked at")


@pytest.mark.parametrize("other", [PROTOCOL_VERSION - 1, PROTOCOL_VERSION + 1])
def test_a_worker_of_another_version_is_refused_with_both_named(other: int) -> None:
    store = Store(KINDS.values(), _Journal())
    sessions = Sessions(store, _NoOutput(), Rules(60.0, {}, _fresh))
    enrollment = EnrollmentController(store, sessions, _Clock(), lambda: "uid")
    leases = LeaseController(store, sessions, _Clock(), grace_s=60.0)
    sessions.bind(leases, enrollment, lambda worker: None)
    hello = Enroll(
        token="w1.secret", instance="i", machine="m", platform="linux", arch="x86_64",
        version="9.8.7", protocol=other, capacity=1,
    )  # fmt: skip
    with pytest.raises(EnrollmentRefused) as refused:
        asyncio.run(sessions.enroll(hello, _Wire()))
    frame = refusal(refused.value)
    assert (frame.code, frame.permanent) == ("protocol_mismatch", True)
    assert f"protocol {other} (swamp 9.8.7)" in frame.message
    assert f"orchestrator protocol {PROTOCOL_VERSION} (swamp {__version__})" in frame.message
    assert "install the same build on both" in frame.message, "both may call themselves the same"
    assert list(store.list(WORKERS)) == []


def pin() -> None:
    """Write the pinned file; an old number keeps its meaning."""
    now = snapshot()
    if PINNED.exists():
        pinned = json.loads(PINNED.read_text())
        if pinned["protocol"] == now["protocol"] and changed(pinned, now):
            sys.exit(problem(pinned, now))
    PINNED.write_text(json.dumps(now, indent=1, sort_keys=True) + "\n")


if __name__ == "__main__":
    pin()
