"""What follows from a replica's status: when it proposes, refuses clients and clears an alarm."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Coroutine
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from coordinator import vsr
from coordinator.app.leadership import PROGRESS_INTERVAL_S, Leadership, StandingPorts
from coordinator.replica.ports import Progress

NORMAL, VIEW_CHANGE = vsr.ReplicaStatus.NORMAL, vsr.ReplicaStatus.VIEW_CHANGE


class LeadershipTrial:
    """Replica 0 with parts that remember each request; work waits until `run`."""

    def __init__(self, directory: Path) -> None:
        self.said: list[str] = []
        self.ready: list[bool] = []
        self.work: list[Coroutine[Any, Any, None]] = []
        self.progress = Progress()
        self.serving = SimpleNamespace(is_primary=False)
        self.mux_effects = self
        self.mux = SimpleNamespace(feature_level=0)
        orchestrator = SimpleNamespace(
            wake=lambda: None, activate=lambda: None, deactivate=lambda: None
        )
        ports: Any = StandingPorts(
            driver=self,  # type: ignore[arg-type]
            writer=SimpleNamespace(status_changed=lambda is_normal: None),  # type: ignore[arg-type]
            proposals=SimpleNamespace(  # type: ignore[arg-type]
                activate=self.say("activate"), deactivate=self.say("deactivate")
            ),
            timers=SimpleNamespace(  # type: ignore[arg-type]
                begin=self.say("begin timers"), stop=self.say("stop timers")
            ),
            snapshots=SimpleNamespace(  # type: ignore[arg-type]
                orchestrator=orchestrator, replayed=self.nothing
            ),
            face=SimpleNamespace(  # type: ignore[arg-type]
                submit=SimpleNamespace(end_all=self.say("end streams")),
                server=SimpleNamespace(set_ready=self.set_ready),
                address="",
            ),
            members=SimpleNamespace(  # type: ignore[arg-type]
                report=lambda: None, settled=self.say("settled")
            ),
            data_directory=directory,
            start=self.work.append,
        )
        self.standing = Leadership(ports)

    def say(self, what: str) -> Any:
        """Return the part that remembers that it was called."""
        return lambda *_: self.said.append(what)

    async def set_ready(self, ready: bool) -> None:
        """Remember what probes are told."""
        self.ready.append(ready)

    async def nothing(self, *_: object) -> None:
        """Take part."""

    def ask_proposals(self) -> None:
        """Ask nobody."""

    def changes(self, status: vsr.ReplicaStatus, view: int) -> None:
        """Enter a status; this replica leads view 0."""
        self.serving.is_primary = status is NORMAL and view == 0
        self.standing.status_changed(vsr.StatusChanged(status, view, view))

    async def run(self) -> None:
        """Do the work that was started."""
        while self.work:
            await self.work.pop(0)


async def test_a_primary_stops_to_lead(tmp_path: Path) -> None:
    """A primary proposes once it is ready; its proposals and client streams end with its view."""
    trial = LeadershipTrial(tmp_path)
    trial.changes(NORMAL, 0)
    await trial.run()
    trial.changes(VIEW_CHANGE, 1)
    await trial.run()
    trial.changes(NORMAL, 1)
    await trial.run()
    assert trial.said == [
        *("settled", "activate", "begin timers"),
        *("deactivate", "stop timers", "end streams", "settled"),
    ]


async def test_a_lead_that_ended_before_it_began(tmp_path: Path) -> None:
    """Clients that came before the first proposal are sent away, too."""
    trial = LeadershipTrial(tmp_path)
    trial.changes(NORMAL, 0)
    trial.changes(VIEW_CHANGE, 1)
    await trial.run()
    assert trial.said == ["settled", "deactivate", "stop timers", "end streams"]


async def test_a_backup_has_nobody_to_send_away(tmp_path: Path) -> None:
    """A replica that did not lead ends no streams and proposes nothing."""
    trial = LeadershipTrial(tmp_path)
    for status, view in ((VIEW_CHANGE, 1), (NORMAL, 1), (VIEW_CHANGE, 2), (NORMAL, 2)):
        trial.changes(status, view)
        await trial.run()
    assert trial.said == ["settled", "settled"]
    await asyncio.sleep(0)


async def test_a_replica_whose_stages_stand_still_is_not_ready(tmp_path: Path) -> None:
    """The replica is ready again once its stages get on, unless it has left status normal."""
    trial = LeadershipTrial(tmp_path)
    trial.changes(NORMAL, 0)
    trial.standing.stalled("op 8 does not get through its stages")
    trial.standing.stalled("")
    trial.standing.stalled("op 9 does not get through its stages")
    trial.changes(VIEW_CHANGE, 1)
    trial.standing.stalled("")
    await trial.run()
    assert trial.ready == [True, False, True, False, False, False]


async def test_a_long_log_is_told_of(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A replica reports its progress to its supervisor until it is ready, and not after."""
    now_s = 100.0
    monkeypatch.setattr(time, "monotonic", lambda: now_s)
    trial = LeadershipTrial(tmp_path)
    applied: Any = SimpleNamespace(ended_sessions=(), users_with_ended_credentials=())
    for op in range(1, 4):
        trial.progress = Progress(op=9, applied_op=op)
        trial.standing.applied(applied)
        now_s += PROGRESS_INTERVAL_S / 2 + 1
    assert capsys.readouterr().out == '{"applied": 3}\n'
    trial.progress = Progress(op=9, applied_op=9)
    trial.changes(NORMAL, 0)
    await trial.run()
    capsys.readouterr()
    now_s += PROGRESS_INTERVAL_S
    trial.standing.applied(applied)
    assert not capsys.readouterr().out
