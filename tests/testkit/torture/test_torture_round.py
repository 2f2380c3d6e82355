"""A short round with real processes is good, and planted lies about its history are found."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from testkit.torture.cluster import REPLICAS, running
from testkit.torture.injector import FaultInjector
from testkit.torture.judge import judge_history, judge_watches
from testkit.torture.recorder import Recorder
from testkit.torture.round import TortureRound
from testkit.torture.schedule import schedule

pytestmark = pytest.mark.long

SECONDS = 12.0
SEED = 5
TRANSACTIONS_MIN = 200


async def test_a_short_round_is_good(tmp_path: Path) -> None:
    """Processes die and come back, nothing is lost or doubled, and the judges are awake."""
    async with running(tmp_path / "replicas") as cluster:
        injector = partial(FaultInjector, cluster, faults=schedule(SEED, SECONDS, REPLICAS))
        one = TortureRound(cluster, 1, SEED, injector, tmp_path / "round")
        found = await one.run()
    assert found.findings == []
    assert found.kill_count >= 3
    assert found.transactions >= TRANSACTIONS_MIN
    assert found.requests > 0
    assert found.snapshots > 0
    assert found.watched > 0
    assert_lies_about_watches_are_found(one)
    assert_lies_are_found(one.recorder)


def assert_lies_about_watches_are_found(one: TortureRound) -> None:
    """A feed that has lost what a caller was told of is found."""
    feed, history = one.watchers.feed, one.recorder.history
    told = {each.revision for each in history if each.writes and each.revision is not None}
    life = max(feed.lives, key=lambda each: len(told & each.changes.keys()))
    del life.changes[max(told & life.changes.keys())]
    assert any("was not shown" in each for each in judge_watches(feed, history))


def assert_lies_are_found(recorder: Recorder) -> None:
    """A recorder that lies about the last reads is found: about an old version, and a lost one."""
    last = recorder.history[-1]
    read, grown = last.reads[0], max(last.lists, key=lambda each: len(each.versions))
    older = next(
        each
        for earlier in recorder.history
        for each in earlier.reads
        if each.key == read.key and each.version != read.version
    )
    lies = [
        replace(last, reads=(older, *last.reads[1:])),
        replace(last, lists=(grown._replace(versions=grown.versions[:-1]),)),
    ]
    for lie in lies:
        found = judge_history(replace(recorder, history=[*recorder.history[:-1], lie]))
        assert any("G-single" in each for each in found)
        assert any("at revision" in each for each in found)
