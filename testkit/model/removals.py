"""The guards of the protocol that the specification has, each with bounds that show its removal."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

from testkit.model import scripts
from testkit.model.bounds import TlaBounds

FIVE: Final = TlaBounds(replica_count=5)
"""Five replicas, which TLC can look at along a script alone."""


@dataclass(frozen=True, slots=True)
class GuardRemoval:
    """One guard, taken out. `about` says what a replica then does.

    TLC has to find what breaks within `bounds`, unless `redundant` says why nothing breaks.
    """

    name: str
    about: str
    bounds: TlaBounds
    redundant: str = ""

    @property
    def planted(self) -> TlaBounds:
        """The bounds, without the guard."""
        return replace(self.bounds, removed=(*self.bounds.removed, self.name))


REMOVALS: Final = (
    GuardRemoval(
        "ViewDurable",
        "A replica votes in a view before its disk has recorded the view",
        TlaBounds(restarts=1, lazy_superblock=True),
    ),
    GuardRemoval(
        "LogViewDurable",
        "A replica acts in a view before its disk has recorded that it has the log",
        TlaBounds(restarts=1, lazy_superblock=True),
    ),
    GuardRemoval(
        "AckDurable",
        "A backup acknowledges an entry when its write begins",
        TlaBounds(lazy_journal="all"),
    ),
    GuardRemoval(
        "AckOldPrimary",
        "A replica that has voted still journals and acknowledges entries of the old primary",
        TlaBounds(),
    ),
    GuardRemoval(
        "OldViewAck",
        "A primary counts acknowledgements of earlier views",
        replace(FIVE, view_max=3, steps=scripts.OLD_VIEW_ACK),
    ),
    GuardRemoval(
        "ReplicationQuorum",
        "A primary commits with one copy less than a quorum",
        TlaBounds(),
    ),
    GuardRemoval(
        "VoteQuorum",
        "A primary-elect chooses the log with one vote less than a quorum",
        TlaBounds(),
    ),
    GuardRemoval(
        "HighestLogView",
        "The longest logs are believed, not those of the highest log view",
        TlaBounds(view_max=2, batches=3, pipeline=2),
    ),
    GuardRemoval(
        "FaultyIsNoNack",
        "A vote reports a damaged record as one that never existed",
        TlaBounds(view_max=2, damaged_records=1),
    ),
    GuardRemoval(
        "WholeLog",
        "A replica records the log view before it has the whole log",
        TlaBounds(view_max=2),
    ),
    GuardRemoval(
        "Recordable",
        "The superblock records commits of entries that are still on their way to the disk",
        TlaBounds(view_max=2, batches=2, restarts=1, lazy_journal="all", steps=scripts.RECORDABLE),
    ),
    GuardRemoval(
        "Superseded",
        "A replica adopts the log of a view after which a later one went on without it",
        TlaBounds(view_max=2, batches=2),
    ),
    GuardRemoval(
        "KeepCommitted",
        "A replica discards entries beyond the chosen log although it knows them to be committed",
        TlaBounds(view_max=2),
    ),
    GuardRemoval(
        "KeepEqual",
        "A replica that adopts a log discards its own equal entries first",
        TlaBounds(view_max=2),
    ),
    GuardRemoval(
        "StaleStartView",
        "A replica accepts a log of its own view that is older than its acknowledgements",
        TlaBounds(restarts=1),
    ),
    GuardRemoval(
        "TruncateWhenBehind",
        "A replica that hears of a later view discards what it does not know to be committed",
        TlaBounds(),
    ),
    GuardRemoval(
        "CommitOfView",
        "A replica applies the commit point of another view to its own log",
        TlaBounds(view_max=2, batches=2),
    ),
    GuardRemoval(
        "RepairByChecksum",
        "Replicas exchange entries of a chosen log by op alone, whatever their checksum",
        TlaBounds(view_max=2, batches=2),
    ),
    GuardRemoval(
        "RestartedPrimary",
        "A primary that restarts goes on in its view",
        TlaBounds(batches=2, restarts=1, lazy_journal="primary"),
    ),
    GuardRemoval(
        "NoVoteAfterLostDisk",
        "A replica that lost its disk votes and acknowledges at once",
        TlaBounds(lost_disks=1),
    ),
    GuardRemoval(
        "NewcomerNonce",
        "A newcomer accepts a late log that was meant for its earlier life",
        TlaBounds(view_max=2, lost_disks=1, steps=scripts.NEWCOMER_NONCE),
    ),
    GuardRemoval(
        "AdmissionConfirmed",
        "A primary admits a newcomer without asking whether it still leads",
        TlaBounds(view_max=2, lost_disks=1, steps=scripts.ADMISSION_CONFIRMED),
    ),
    GuardRemoval(
        "ViewsForgotten",
        "A newcomer votes from the next view on, though votes of its lost disk for the view after "
        "that are under way",
        TlaBounds(view_max=2, lost_disks=1, steps=scripts.VIEWS_FORGOTTEN),
    ),
    GuardRemoval(
        "OldVotesArrive",
        "No guard but a limit of the protocol: a vote of a lost disk, for a view later than that "
        "of the admission, arrives after the admission",
        TlaBounds(view_max=3, lost_disks=1, steps=scripts.OLD_VOTES_ARRIVE),
    ),
    GuardRemoval(
        "VotesExpire",
        "A vote that a primary-elect has heard counts for good, though the disk of its replica may "
        "be lost since",
        replace(FIVE, view_max=3, lost_disks=1, steps=scripts.VOTES_EXPIRE),
    ),
    GuardRemoval(
        "NamesThisBoot",
        "A replica that lost its disk takes op 1 as an initial member, and has a vote at once",
        TlaBounds(lost_disks=1),
    ),
    GuardRemoval(
        "TailNamed",
        "The superblock names no record, so a journal that lost its end passes for a whole one",
        TlaBounds(view_max=2, lost_tails=1),
    ),
    GuardRemoval(
        "OlderSuperblock",
        "Records name no superblock, so a replica starts with one from before its last records",
        TlaBounds(batches=2, older_copies=1, steps=scripts.OLDER_SUPERBLOCK),
    ),
    GuardRemoval(
        "KnownDisks",
        "The others take in a replica whose disk was put back from an earlier copy",
        TlaBounds(older_copies=1),
    ),
    GuardRemoval(
        "ChangeCommitted",
        "A replica enters the next epoch before the entry that ends its own is committed",
        TlaBounds(change="two to three"),
    ),
    GuardRemoval(
        "ChangeDurable",
        "A replica enters the next epoch while the entry that ends its own is on its way to the "
        "disk",
        TlaBounds(
            replica_count=4,
            change="four to three",
            batches=1,
            restarts=2,
            lazy_journal="all",
            steps=scripts.CHANGE_DURABLE,
        ),
    ),
    GuardRemoval(
        "ChangeIsLast",
        "A primary admits batches behind the entry that ends its epoch",
        TlaBounds(change="three to two", batches=2, pipeline=2),
    ),
    GuardRemoval(
        "OnlyVoters",
        "Replicas that were removed, or have no vote yet, acknowledge, vote, and are counted",
        TlaBounds(change="three to two"),
    ),
    GuardRemoval(
        "EpochInViews",
        "View numbers have no epoch: votes and acknowledgements of earlier epochs count",
        TlaBounds(change="two to three"),
    ),
    GuardRemoval(
        "ChosenDisk",
        "A change names no disk: a replica that gets a vote may have lost what it vouched for",
        TlaBounds(change="two to three", lost_disks=1),
    ),
    GuardRemoval(
        "FirstPrimaryVotes",
        "A replica that lost its disk leads the first view of an epoch, which it may have led",
        TlaBounds(change="newcomer leads", lost_disks=1),
    ),
)
