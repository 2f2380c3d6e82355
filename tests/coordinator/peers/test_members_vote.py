"""Reasons against a replica as primary are reported to the other replicas."""

from __future__ import annotations

from dataclasses import fields
from types import SimpleNamespace
from typing import Any
from unittest.mock import MagicMock

import pytest

from coordinator.app.members import MemberPorts, Members
from coordinator.app.reports import NO_VOTE
from coordinator.base.roster import Roster
from coordinator.mux.applied_digests import AppliedDigests
from coordinator.peers.hello import NO_DISK, DiskMark
from coordinator.peers.messages import PeerMessage, ReplicaReportMessage
from coordinator.replica.ports import Progress
from coordinator.vsr import ReplicaStatus
from tests.coordinator.peers.peer_trial import config, free_addresses
from viewstamp.format.superblock import NOT_ADMITTED

NOW_US = 1_800_000_000_000_000
NORMAL = Progress(status=ReplicaStatus.NORMAL)


def members(
    replica: int,
    *,
    has_vote: bool = True,
    unfit: str = "",
    clock: Any = None,
    files: Any = None,
    roster: Roster | None = None,
) -> tuple[Members, list[PeerMessage]]:
    """One replica's members, and the messages they send."""
    ports: dict[str, Any] = {field.name: MagicMock() for field in fields(MemberPorts)}
    ports["clock"].own_us.return_value = NOW_US
    ports = ports if clock is None else {**ports, "clock": clock}
    ports["unfit"].return_value = unfit
    ports["clock_ms"].return_value = 1_000
    ports["digests"] = AppliedDigests()
    ports["roster"] = roster or Roster.founding(replica, 3)
    core = SimpleNamespace(is_voter=has_vote)
    ports["driver"].return_value = MagicMock(progress=NORMAL, core=core)
    ports["files"].superblock.exists = False
    ports = ports if files is None else {**ports, "files": files}
    made = Members(config(free_addresses(), replica), MemberPorts(**ports))
    sent: list[PeerMessage] = []

    def send(to_replica: int, message: PeerMessage) -> None:
        sent.append(message)

    made.peers.send = send  # type: ignore[method-assign]
    return made, sent


@pytest.mark.parametrize(
    ("has_vote", "unfit", "told"),
    [(True, "", ""), (True, "full", "full"), (False, "", NO_VOTE), (False, "full", "full")],
)
def test_nobody_gives_up_its_view_for_a_replica_without_a_vote(
    has_vote: bool, unfit: str, told: str
) -> None:
    """No replica gives up its view for one that cannot lead: two unfit ones would swap for ever."""
    newcomer, sent = members(2, has_vote=has_vote, unfit=unfit)
    primary, _ = members(0, has_vote=True, unfit="")

    newcomer.report()
    report = next(each for each in sent if isinstance(each, ReplicaReportMessage))
    primary.peers.handlers[type(report)](report)

    assert report.unfit == told
    assert primary.reports.has_fit_peer() is (told == "")


def test_a_report_tells_the_clock() -> None:
    """A replica tells its clock in its reports, and hears those of others by replica."""
    clock = MagicMock()
    one, sent = members(1)
    other, _ = members(0, clock=clock)

    one.report()
    report = next(each for each in sent if isinstance(each, ReplicaReportMessage))
    other.peers.handlers[type(report)](report)

    clock.heard.assert_called_once_with(1, NOW_US)


def files_at(voting_view: int) -> MagicMock:
    """Return a data directory that has come to view 7, the log of view 6 and record 40."""
    files = MagicMock()
    files.journal = SimpleNamespace(
        public_id=b"d" * 16, sequence_for_superblock=40, last_sequence=41
    )
    files.superblock.state = SimpleNamespace(
        view=7, log_view=6, damaged_start=3, voting_view=voting_view
    )
    return files


@pytest.mark.parametrize(("voting_view", "tells"), [(0, True), (5, True), (NOT_ADMITTED, False)])
def test_a_directory_without_a_vote_is_not_told(voting_view: int, *, tells: bool) -> None:
    """A replica that was started without its volume once must not make others refuse the volume."""
    made, sent = members(1, files=files_at(voting_view))
    made.report()
    (disk,) = {each.disk for each in sent if isinstance(each, ReplicaReportMessage)}
    told = DiskMark(b"d" * 16, 7, 6, 3, 40, 41, disk.boot_nonce)
    assert disk == (told if tells else NO_DISK)
    assert (disk.boot_nonce != b"") is tells


def test_what_reports_tell_of_a_directory_is_remembered() -> None:
    """The report of a replica is what its next start is judged by."""
    one, sent = members(1, files=files_at(0))
    other, _ = members(0)
    other.peers.known_disks = MagicMock()

    one.report()
    report = next(each for each in sent if isinstance(each, ReplicaReportMessage))
    other.peers.handlers[type(report)](report)

    other.peers.known_disks.heard.assert_called_once_with(1, report.disk)
