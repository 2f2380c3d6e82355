"""What follows from a replica's status: when it proposes, refuses clients and clears an alarm."""

from __future__ import annotations

import time
from collections.abc import Coroutine
from pathlib import Path
from typing import Any

import pytest

from coordinator import vsr
from coordinator.app.leadership import PROGRESS_INTERVAL_S, Leadership, LeadershipPorts
from coordinator.mux.types import Applied
from coordinator.replica.ports import Progress
from viewstamp.errors import Refusal

NOTHING_ENDED = Applied(1, 0, 0, (), ())
NORMAL, VIEW_CHANGE = vsr.ReplicaStatus.NORMAL, vsr.ReplicaStatus.VIEW_CHANGE


class FakePart:
    """A part that notes under its own name what it is told."""

    def __init__(self, name: str, said: list[str]) -> None:
        self._name = name
        self._said = said

    def say(self, what: str) -> None:
        """Note it."""
        self._said.append(f"{what} {self._name}")


class FakeLeadPart(FakePart):
    """Proposals, snapshots or timers."""

    active = False

    def activate(self) -> None:
        """Begin."""
        self.active = True
        self.say("activate")

    def deactivate(self) -> None:
        """End."""
        self.active = False
        self.say("deactivate")

    def begin(self) -> None:
        """Begin anew."""
        self.say("begin")

    def stop(self) -> None:
        """End."""
        self.say("stop")

    def wake(self) -> None:
        """Notice nothing: every change of status wakes the snapshots."""


class FakeClientStreams(FakePart):
    """The streams of clients."""

    def end_all(self, refusal: Refusal) -> None:
        """Note the reason, too."""
        self.say(f"end all by {refusal.name}")

    def session_ended(self, session_id: int) -> None:
        """End those of a session."""
        self.say(f"end session {session_id}")

    def credentials_ended(self, user_id: int) -> None:
        """End those of a user."""
        self.say(f"end user {user_id}")


class FakeMembers(FakePart):
    """The other replicas, and the writer of the journal."""

    is_normal = False

    def report(self) -> None:
        """Notice nothing: every change of status is reported."""

    def settled(self) -> None:
        """Hear that the log is settled."""
        self.say("settled")

    def status_changed(self, *, is_normal: bool) -> None:
        """Hear the status."""
        self.is_normal = is_normal


class LeadershipTrial:
    """Replica 0 with parts that remember each request; work waits until `run`."""

    def __init__(self, directory: Path) -> None:
        self.said: list[str] = []
        self.ready: list[bool] = []
        self.work: list[Coroutine[Any, Any, None]] = []
        self.progress = Progress()
        self.is_primary = False
        self.lacks_vote = False
        self.feature_level = 0
        self.asked_count = 0
        self.proposals = FakeLeadPart("proposals", self.said)
        self.members = FakeMembers("members", self.said)
        ports = LeadershipPorts(
            progress=lambda: self.progress,
            is_primary=lambda: self.is_primary,
            lacks_vote=lambda: self.lacks_vote,
            feature_level=lambda: self.feature_level,
            ask_proposals=self.ask_proposals,
            writer=self.members,
            proposals=self.proposals,
            timers=(FakeLeadPart("timers", self.said),),
            snapshots=FakeLeadPart("snapshots", self.said),
            replayed=self.replayed,
            streams=FakeClientStreams("streams", self.said),
            set_ready=self.set_ready,
            address="",
            members=self.members,
            data_directory=directory,
            start=self.work.append,
        )
        self.leadership = Leadership(ports)

    async def set_ready(self, ready: bool) -> None:
        """Remember what probes are told."""
        self.ready.append(ready)

    async def replayed(self) -> None:
        """Notice nothing."""

    def ask_proposals(self) -> None:
        """Count how often the stages are asked."""
        self.asked_count += 1

    def changes(self, status: vsr.ReplicaStatus, view: int) -> None:
        """Enter a status; this replica leads view 0."""
        self.is_primary = status is NORMAL and view == 0
        self.leadership.status_changed(vsr.StatusChanged(status, view, view))

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
        "settled members",
        *("activate proposals", "begin timers", "activate snapshots"),
        *("deactivate proposals", "stop timers", "deactivate snapshots"),
        "end all by VIEW_CHANGE streams",
        "settled members",
    ]


async def test_a_lead_that_ended_before_it_began(tmp_path: Path) -> None:
    """Clients that came before the first proposal are sent away, too."""
    trial = LeadershipTrial(tmp_path)
    trial.changes(NORMAL, 0)
    trial.changes(VIEW_CHANGE, 1)
    await trial.run()
    assert trial.said == [
        "settled members",
        *("deactivate proposals", "stop timers", "deactivate snapshots"),
        "end all by VIEW_CHANGE streams",
    ]


async def test_a_backup_has_nobody_to_send_away(tmp_path: Path) -> None:
    """A replica that did not lead ends no streams and proposes nothing."""
    trial = LeadershipTrial(tmp_path)
    for status, view in ((VIEW_CHANGE, 1), (NORMAL, 1), (VIEW_CHANGE, 2), (NORMAL, 2)):
        trial.changes(status, view)
        await trial.run()
    assert trial.said == ["settled members"] * 2


async def test_a_replica_whose_stages_stand_still_is_not_ready(tmp_path: Path) -> None:
    """The replica is ready again once its stages get on, unless it has left status normal."""
    trial = LeadershipTrial(tmp_path)
    trial.changes(NORMAL, 0)
    trial.leadership.stalled("op 8 does not get through its stages")
    trial.leadership.stalled("")
    trial.leadership.stalled("op 9 does not get through its stages")
    trial.changes(VIEW_CHANGE, 1)
    trial.leadership.stalled("")
    await trial.run()
    assert trial.ready == [True, False, True, False, False, False]


@pytest.mark.parametrize("is_in_a_new_view", [True, False])
async def test_a_replica_without_its_vote_is_not_ready(
    tmp_path: Path, is_in_a_new_view: bool
) -> None:
    """A replica that lost its disk is ready once it has its vote back, and not when it follows.

    The vote comes with a new view, or with an entry that shows that nothing was forgotten.
    """
    trial = LeadershipTrial(tmp_path)
    trial.lacks_vote = True
    trial.changes(NORMAL, 1)
    trial.leadership.applied(NOTHING_ENDED)
    await trial.run()
    followed, trial.ready[:] = list(trial.ready), []
    trial.lacks_vote = False
    if is_in_a_new_view:
        trial.changes(VIEW_CHANGE, 3)
        trial.changes(NORMAL, 3)
    else:
        trial.leadership.applied(NOTHING_ENDED)
    await trial.run()
    assert (set(followed), trial.ready[-1]) == ({False}, True)


async def test_a_long_log_is_told_of(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A replica reports its progress to its supervisor until it is ready, and not after."""
    now_s = 100.0
    monkeypatch.setattr(time, "monotonic", lambda: now_s)
    trial = LeadershipTrial(tmp_path)
    for op in range(1, 4):
        trial.progress = Progress(op=9, applied_op=op)
        trial.leadership.applied(NOTHING_ENDED)
        now_s += PROGRESS_INTERVAL_S / 2 + 1
    assert capsys.readouterr().out == '{"applied": 3}\n'
    trial.progress = Progress(op=9, applied_op=9)
    trial.changes(NORMAL, 0)
    await trial.run()
    capsys.readouterr()
    now_s += PROGRESS_INTERVAL_S
    trial.leadership.applied(NOTHING_ENDED)
    assert not capsys.readouterr().out


async def test_a_raised_level_repeats_the_proposals_of_a_primary(tmp_path: Path) -> None:
    """Once per raised level the stages of a primary, and of nobody else, are asked again.

    Timers begin anew with each: below a level silence may have had no consequence.
    """
    trial = LeadershipTrial(tmp_path)
    trial.feature_level = 1
    trial.leadership.applied(NOTHING_ENDED)
    assert trial.asked_count == 0, "a backup proposes nothing"
    trial.changes(NORMAL, 0)
    await trial.run()
    asked_by_the_lead = trial.asked_count
    for level in (1, 2, 2, 3):
        trial.feature_level = level
        trial.leadership.applied(NOTHING_ENDED)
    assert (asked_by_the_lead, trial.asked_count) == (1, 3)
    assert trial.said.count("begin timers") == 3


def test_what_ended_in_the_log_ends_its_streams(tmp_path: Path) -> None:
    """The streams of ended sessions, and of users whose credentials ended, are ended."""
    trial = LeadershipTrial(tmp_path)
    trial.leadership.applied(Applied(1, 0, 0, (), (7, 8), (9,)))
    ended = [f"end session {session_id} streams" for session_id in (7, 8)]
    assert trial.said == [*ended, "end user 9 streams"]


def test_the_writer_hears_of_each_status(tmp_path: Path) -> None:
    """The writer of the journal knows whether this replica holds the log of the cluster."""
    trial = LeadershipTrial(tmp_path)
    heard = []
    for status in (VIEW_CHANGE, NORMAL, VIEW_CHANGE):
        trial.changes(status, 1)
        heard.append(trial.members.is_normal)
        while trial.work:
            trial.work.pop().close()
    assert heard == [False, True, False]
