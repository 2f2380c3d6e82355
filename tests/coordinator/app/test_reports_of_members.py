"""Reports of replicas that come and go: whom a replica reckons with at each moment."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from coordinator.app.reports import SnapshotReports
from coordinator.base.roster import Roster
from coordinator.peers.messages import ReplicaReportMessage
from viewstamp.api.cluster.v1 import cluster_service_pb2 as cluster_pb2

Members = tuple[tuple[int, ...], tuple[int, ...]]


@dataclass(frozen=True)
class Reckoned:
    """What follows from reports: commits of followers, supported levels, and whether one is fit."""

    commits: list[int]
    levels: dict[int, int]
    has_fit_peer: bool


class ReportsTrial:
    """Replica 0, which hears that replica n is at commit 10 + n, and is fit."""

    def __init__(self, voters: int, standbys: int = 0) -> None:
        self.roster = Roster.founding(0, voters, standbys)
        self.reports = SnapshotReports(self.roster, lambda: 0)

    def hears(self, *replicas: int) -> None:
        """Hear from these replicas."""
        normal = cluster_pb2.REPLICA_STATUS_NORMAL
        for each in replicas:
            report = ReplicaReportMessage(b"", each, normal, 1, 1, 10 + each, 1, 0, "", "", 5)
            self.reports.heard(report)

    def reckons(self) -> Reckoned:
        """Return what follows from all that was heard."""
        reports = self.reports
        commits = [each.committed_op for each in reports.followers()]
        return Reckoned(commits, reports.supported_levels(), reports.has_fit_peer())


@pytest.mark.parametrize(
    ("before", "members", "after", "reckoned"),
    [
        ((1, 2), ((0, 1, 2), ()), (), Reckoned([11, 12], {1: 5, 2: 5}, has_fit_peer=True)),
        # A removed replica follows no more, and what it says now is not heard.
        ((1, 2), ((0, 1), ()), (2,), Reckoned([11], {1: 5}, has_fit_peer=True)),
        ((2,), ((0, 1), ()), (2,), Reckoned([], {1: 0}, has_fit_peer=False)),
        ((1, 2), ((0,), ()), (1, 2), Reckoned([], {}, has_fit_peer=False)),
        # A newcomer is reckoned with once it is a member and was heard.
        ((4,), ((0, 1, 2, 4), ()), (), Reckoned([], {1: 0, 2: 0, 4: 0}, has_fit_peer=False)),
        ((), ((0, 1, 2, 4), ()), (4,), Reckoned([14], {1: 0, 2: 0, 4: 5}, has_fit_peer=True)),
        # A standby cannot lead; one that was promoted can.
        ((3,), ((0, 1, 2), (3,)), (), Reckoned([13], {1: 0, 2: 0, 3: 5}, has_fit_peer=False)),
        ((3,), ((0, 1, 2, 3), ()), (), Reckoned([13], {1: 0, 2: 0, 3: 5}, has_fit_peer=True)),
        ((), ((0, 1, 2), (4,)), (4,), Reckoned([14], {1: 0, 2: 0, 4: 5}, has_fit_peer=False)),
        # This replica was removed, and knows the others all the same.
        ((1,), ((1, 2), ()), (2,), Reckoned([11, 12], {1: 5, 2: 5}, has_fit_peer=True)),
    ],
)
def test_reports_of_the_members_of_the_moment_count(
    before: tuple[int, ...], members: Members, after: tuple[int, ...], reckoned: Reckoned
) -> None:
    """Of three voters and a standby others become members: they alone are reckoned with."""
    trial = ReportsTrial(3, standbys=1 if 3 in before else 0)
    trial.hears(*before)
    trial.roster.enter(*members)
    trial.hears(*after)
    assert trial.reckons() == reckoned


def test_a_removed_replica_is_forgotten() -> None:
    """Nothing is known of a removed replica, whatever it says, and nothing before it is added."""
    trial = ReportsTrial(3)
    trial.hears(2, 7)
    assert trial.reports.last(2) is not None
    assert trial.reports.last(7) is None
    trial.roster.enter((0, 1), ())
    assert trial.reports.last(2) is None
    trial.hears(2)
    assert trial.reports.last(2) is None
