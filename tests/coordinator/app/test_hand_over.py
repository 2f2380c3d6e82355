"""A primary that is told to stop hands over, and never waits for what cannot come."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field

import pytest

from coordinator import vsr
from coordinator.app import hand_over as handing_over
from coordinator.app.hand_over import HandOverPorts, hand_over
from coordinator.replica.ports import Progress

NORMAL, VIEW_CHANGE = vsr.ReplicaStatus.NORMAL, vsr.ReplicaStatus.VIEW_CHANGE
OWN, OTHER = 0, 1


@dataclass
class FakeReplica:
    """A replica that leads, or does not, and the reasons for which it gave up."""

    progress: Progress = field(default_factory=lambda: Progress(status=NORMAL, primary=OWN))
    has_fit_peer: bool = True
    is_connected: bool = True
    given: list[str] = field(default_factory=list)

    def ports(self) -> HandOverPorts:
        """Return what a hand-over knows of it."""
        return HandOverPorts(
            progress=lambda: self.progress,
            replica_id=OWN,
            leads=lambda: self.progress.status is NORMAL and self.progress.primary == OWN,
            has_fit_peer=lambda: self.has_fit_peer,
            is_connected=lambda: self.is_connected,
            leave=self.given.append,
        )


@pytest.mark.parametrize(
    "replica",
    [
        FakeReplica(progress=Progress(status=NORMAL, primary=OTHER)),
        FakeReplica(progress=Progress(status=VIEW_CHANGE, primary=OWN)),
        FakeReplica(has_fit_peer=False),
    ],
    ids=["a backup", "no view", "nobody could lead"],
)
async def test_who_need_not_or_cannot_hand_over_stops_at_once(replica: FakeReplica) -> None:
    """A backup, a replica without a view, and one without a successor give nothing up."""
    await hand_over(replica.ports())

    assert replica.given == []


async def test_a_primary_waits_for_its_successor() -> None:
    """A primary becomes unfit to lead, and stops once another leads, not in the view change."""
    replica = FakeReplica()
    waiting = asyncio.create_task(hand_over(replica.ports()))
    await asyncio.sleep(0)
    assert replica.given == ["it was told to stop"]

    replica.progress = Progress(status=VIEW_CHANGE, primary=OTHER)
    replica.has_fit_peer = False
    await asyncio.sleep(0.05)
    assert not waiting.done()

    replica.progress = Progress(status=NORMAL, primary=OTHER)
    await waiting


async def test_a_successor_that_goes_away_is_not_waited_for() -> None:
    """If all replicas are told to stop, the primary does not wait for those that are gone."""
    replica = FakeReplica()
    waiting = asyncio.create_task(hand_over(replica.ports()))
    await asyncio.sleep(0)

    replica.is_connected = False

    await waiting


async def test_the_wait_ends(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A primary that nobody relieves stops after the limit, and says so."""
    monkeypatch.setattr(handing_over, "HAND_OVER_MS", 20)

    await hand_over(FakeReplica().ports())

    assert "no other replica took over in time" in caplog.text
