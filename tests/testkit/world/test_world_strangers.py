"""Programs in a world that are not ours: each is refused what it sends, with the reason due."""

from __future__ import annotations

import pytest

from coordinator.gateway import watch_openings
from testkit.world.options import WorldOptions
from testkit.world.run import WorldOutcome, WorldRun
from testkit.world.stranger_requests import REQUESTS
from viewstamp.api.streams.v1.streams_pb2 import Topic

OPTIONS = WorldOptions(seconds=6, clients=1, callers=1, faults=(), strangers=1)


@pytest.fixture(scope="module")
def outcome() -> WorldOutcome:
    """Return a run with one stranger."""
    return WorldRun(1, OPTIONS).run()


def test_each_request_of_a_stranger_is_refused(outcome: WorldOutcome) -> None:
    """Each of them is sent once at least, and none gets another answer than the one due."""
    sent = {mark.split(": ")[1] for mark in outcome.marks if mark.startswith("strangers: ")}
    assert outcome.violations == []
    assert {request.what for request in REQUESTS} <= sent


def test_requests_are_told_apart() -> None:
    """No two requests have one name."""
    assert len({request.what for request in REQUESTS}) == len(REQUESTS)


def test_a_request_that_is_not_refused_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """A gateway that takes a watch of any type fails the run, with the reason that was due."""
    types = frozenset({Topic.DESCRIPTOR.full_name})
    monkeypatch.setattr(watch_openings, "wanted_types", lambda *_: types)
    found = WorldRun(1, OPTIONS).run().violations
    due = "stranger0 got an answer for a watch of an unknown type, and MALFORMED_REQUEST is due"
    assert due in found
