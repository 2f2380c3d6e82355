"""Reasons against a replica as primary are reported to the other replicas."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from types import SimpleNamespace
from typing import Any
from unittest.mock import MagicMock

import pytest

from coordinator.app.members import MemberPorts, Members
from coordinator.app.reports import NO_VOTE
from coordinator.peers.messages import PeerMessage, ReplicaReportMessage
from coordinator.replica.ports import Progress
from coordinator.vsr import ReplicaStatus
from tests.coordinator.peers.peer_trial import config, free_addresses

NORMAL = Progress(status=ReplicaStatus.NORMAL)


def members(replica: int, *, has_vote: bool, unfit: str) -> tuple[Members, list[PeerMessage]]:
    """One replica's members, and the messages they send."""
    ports: Mapping[str, Any] = {field.name: MagicMock() for field in fields(MemberPorts)}
    ports["unfit"].return_value = unfit
    ports["clock_ms"].return_value = 1_000
    core = SimpleNamespace(is_voter=has_vote)
    ports["driver"].return_value = MagicMock(progress=NORMAL, core=core)
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
