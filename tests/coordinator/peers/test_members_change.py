"""Whom a replica tells what, and whom it asks, as members change."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Any
from unittest.mock import MagicMock, Mock

import pytest

from coordinator.app import members as members_module
from coordinator.app.members import MemberPorts, Members
from coordinator.app.reports import NO_VOTE
from coordinator.base.roster import Roster
from coordinator.mux.applied_digests import AppliedDigests
from coordinator.peers.messages import PeerMessage, ReplicaReportMessage, SnapshotDurableMessage
from coordinator.replica.ports import Progress
from coordinator.replica.writer import HeldEntries
from coordinator.snapshot.transfer_ports import TransferPorts
from coordinator.snapshot.work import Durable
from coordinator.vsr import ReplicaStatus, SendCommitted
from tests.coordinator.peers.peer_trial import config, free_addresses
from viewstamp.api.cluster.v1 import cluster_service_pb2 as cluster_pb2


class MembersOfTheMoment:
    """Replica 0 of three at first; what it sends, by the receiver."""

    def __init__(self) -> None:
        self.roster = Roster.founding(0, 3)
        self.driver = MagicMock()
        self.driver.progress = Progress(status=ReplicaStatus.NORMAL)
        self.driver.core.is_voter = False
        self.started: list[Any] = []
        self.entries = MagicMock()
        ports: dict[str, Any] = {field.name: MagicMock() for field in fields(MemberPorts)}
        ports["unfit"].return_value = ""
        ports["clock_ms"].return_value = 1_000
        ports |= {"roster": self.roster, "digests": AppliedDigests(), "entries": self.entries}
        ports |= {"driver": lambda: self.driver, "start": self.started.append}
        ports["files"].superblock.exists = False
        told = replace(config(free_addresses(), 0), roster=self.roster)
        self.members = Members(told, MemberPorts(**ports))
        self.members.peers.learn_addresses({5: "later:5", 6: "later:6", 7: "later:7"})
        self.sent: list[tuple[int, PeerMessage]] = []
        send: Any = lambda to, message: self.sent.append((to, message))  # noqa: E731
        self.members.peers.send = send  # type: ignore[method-assign]

    def told(self, kind: type[PeerMessage]) -> list[int]:
        """Return who was told something of a kind, in order."""
        return [to for to, message in self.sent if isinstance(message, kind)]


@pytest.mark.parametrize(
    ("members", "others", "lacks_vote"),
    [
        (((0, 1, 2), ()), [1, 2], True),
        (((0, 2), ()), [2], True),
        (((0, 1, 2, 5), (7,)), [1, 2, 5, 7], True),
        (((1, 2), (0,)), [1, 2], False),
        (((1, 2), ()), [1, 2], False),
        (((0,), ()), [], True),
    ],
)
def test_the_members_of_the_moment_are_told_and_asked(
    members: tuple[tuple[int, ...], tuple[int, ...]], others: list[int], lacks_vote: bool
) -> None:
    """Reports and last words go to all other members, and files come from them. Who should have a
    vote and has none yet says so; who was removed should not."""
    trial = MembersOfTheMoment()
    files = trial.members.peer_files
    trial.roster.enter(*members)
    trial.members.report()
    trial.members.tell_others(Durable(1, 5, b"c" * 16, b"r" * 32, ()))
    assert trial.told(ReplicaReportMessage) == others
    assert trial.told(SnapshotDurableMessage) == others
    assert list(files.replicas()) == others
    reasons = {m.unfit for _, m in trial.sent if isinstance(m, ReplicaReportMessage)}
    assert reasons == ({NO_VOTE if lacks_vote else ""} if others else set())


def test_a_removed_replica_says_that_it_is() -> None:
    """Its status is told like any other, for as long as its process runs."""
    trial = MembersOfTheMoment()
    trial.driver.progress.status = ReplicaStatus.REMOVED
    trial.roster.enter((1, 2), ())
    trial.members.report()
    told = [m.status for _, m in trial.sent if isinstance(m, ReplicaReportMessage)]
    assert told == [cluster_pb2.REPLICA_STATUS_REMOVED] * 2


@pytest.mark.parametrize(
    ("members", "is_told"),
    [(((0, 1, 2), ()), True), (((0, 1), ()), True), (((0,), (1,)), False), (((1,), ()), True)],
)
async def test_damage_is_no_matter_of_the_core_of_a_lone_voter(
    members: tuple[tuple[int, ...], tuple[int, ...]], is_told: bool
) -> None:
    """A record that looks bad when it is sent to a standby would end a lone voter, whose core could
    ask nobody for it."""
    trial = MembersOfTheMoment()
    trial.roster.enter(*members)

    async def damaged(first_op: int, last_op: int) -> HeldEntries:
        return HeldEntries((), first_op)

    trial.entries.read_committed = Mock(side_effect=damaged)
    trial.members.driver_ports().send_committed(SendCommitted(1, 4, 6))
    (work,) = trial.started
    await work
    assert trial.driver.found_faulty.call_count == is_told


def test_a_transfer_asks_the_members_of_the_moment(monkeypatch: pytest.MonkeyPatch) -> None:
    """The transfer is put together with the process, and finds the others when it is needed."""
    kept: list[TransferPorts] = []

    def take(ports: TransferPorts, *around: object) -> MagicMock:
        kept.append(ports)
        return MagicMock(around=around)

    monkeypatch.setattr(members_module, "StateTransfer", take)
    trial = MembersOfTheMoment()
    for members, others in ((((0, 2, 5), (6,)), [2, 5, 6]), (((1, 2), ()), [1, 2])):
        trial.roster.enter(*members)
        assert list(kept[0].replicas()) == others
