"""The output of `viewstamp snapshot create` while it waits."""

from __future__ import annotations

import asyncio
import io
from collections.abc import Mapping
from typing import Any

import pytest
from rich.console import Console

from viewstamp.api.errors.v1.errors_pb2 import Reason
from viewstamp.api.routing.v1 import routing_pb2
from viewstamp.api.snapshots.v1 import snapshots_service_pb2 as pb
from viewstamp.cli import snapshot_progress
from viewstamp.client.snapshots import SnapshotApi
from viewstamp.errors import Refusal

REACHED: Mapping[int, int] = {routing_pb2.STAGE_USERS: 7, routing_pb2.STAGE_STREAMS: 6}


class ProgressCluster:
    """Answers reads of snapshots; no generation is decided before `decide`."""

    def __init__(self, reached: Mapping[int, int] = REACHED, *, is_broken: bool = False) -> None:
        """Begin with generation 7 under way, at these sections."""
        self.decide = asyncio.Event()
        self.looked_up = asyncio.Event()
        self._reached = reached
        self._is_broken = is_broken

    async def call(self, request: Any, *, consistency: Any = None) -> Any:
        """Answer a read."""
        if isinstance(request, pb.GetCurrentSnapshotRequest):
            await self.decide.wait()
            completed = pb.Snapshot(generation=7, state=pb.SNAPSHOT_STATE_COMPLETED, decided_at=1)
            return pb.GetCurrentSnapshotResponse(snapshot=completed)
        self.looked_up.set()
        if self._is_broken or request.stage not in self._reached:
            raise Refusal(Reason.REASON_MALFORMED_REQUEST, "no section")
        return pb.LookupGenerationResponse(generation=self._reached[request.stage])


async def test_sections_that_are_left_are_named() -> None:
    """A section is left until it has reached the generation; a stage without one is not named."""
    snapshots = SnapshotApi(ProgressCluster())
    assert await snapshot_progress.sections_left(snapshots, 7) == ["streams"]
    assert await snapshot_progress.sections_left(snapshots, 8) == ["users", "streams"]
    assert "users, streams left" in snapshot_progress.told(8, ["users", "streams"])
    assert "deciding" in snapshot_progress.told(8, [])


@pytest.mark.parametrize("is_terminal", [True, False])
async def test_only_a_terminal_is_told(monkeypatch: pytest.MonkeyPatch, is_terminal: bool) -> None:
    """The wait ends with the decision, and costs the cluster no reads unless a terminal shows
    it."""
    monkeypatch.setattr(snapshot_progress, "INTERVAL_S", 0.001)
    cluster = ProgressCluster()
    console = Console(file=io.StringIO(), force_terminal=is_terminal)
    waiting = asyncio.ensure_future(snapshot_progress.decided(console, SnapshotApi(cluster), 7))
    for _ in range(50):
        await asyncio.sleep(0.001)
    assert not waiting.done()
    cluster.decide.set()
    assert (await waiting).generation == 7
    assert cluster.looked_up.is_set() is is_terminal


async def test_a_failing_read_fails_no_snapshot(monkeypatch: pytest.MonkeyPatch) -> None:
    """A failed read of the progress does not affect the wait."""
    monkeypatch.setattr(snapshot_progress, "INTERVAL_S", 0.001)
    cluster = ProgressCluster(is_broken=True)
    console = Console(file=io.StringIO(), force_terminal=True)
    waiting = asyncio.ensure_future(snapshot_progress.decided(console, SnapshotApi(cluster), 7))
    await cluster.looked_up.wait()
    cluster.decide.set()
    assert (await waiting).generation == 7
