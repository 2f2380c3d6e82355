"""What a start makes of a damaged or missing record of a journal: one decision table.

Six facts about what is lost decide what is done, by the table `DECISIONS` and nothing else:

`intact`
    The record verified in full.
`superseded`
    It no longer matters: a later record of the same op is intact, or an earlier one of the same
    op and checksum still counts; a later cut or restart removed the op; or a repaired record
    names its sequence.
`above_durable`
    Its sequence is above the durable_sequence of every later record, and above that of the
    superblock: nothing was written knowing that this record was synced, and nothing depended on it.
`above_commit`
    The log reaches everything known to be committed without it. For a single replica: its op is
    above the superblock's commit_max and every commit that a record mentions; an unknown op
    counts as not above. For a member: the records before it reach the superblock's commit_max.
    Commits that records mention do not count there, since the others commit without it.
`torn`
    Units of it are still zeros that were not written as zeros (see `viewstamp.format.record`): its
    write never reached the disk, so the sync of its group never returned, and it was never
    acknowledged. A record found elsewhere (`misdirected_writes`) is not torn: the disk wrote it
    there, and the sync returned.
`single`
    The cluster has one replica: nobody else can supply what is lost.

**Why members need `torn`.** A single replica cuts an unacknowledged tail on the evidence of
`above_durable` and `above_commit`. That includes rot in the very last group, which looks the same:
it has no peer to ask, and would otherwise not start after most crashes. A member has peers, and
must not forget what it acknowledged: the others may have committed because of it. So a record that
may have existed is faulty, and the member never denies it. But if a power failure hits the whole
cluster in the middle of writing, every member has such a tail, none could deny the op, and none
would ever serve again. Hence the proof: members also cut a tail that is certainly torn, and a tail
that only may be torn stays faulty.

`coordinator.journal.recovery` finds the facts at a start, from all records; `viewstamp.journals`
finds them in one walk, for who reads a journal beside its replica.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


class RecoveryDecision(Enum):
    """What recovery does about a record or a finding."""

    KEEP = "keep"
    IGNORE = "ignore"
    CUT = "cut"
    FAULTY_TORN = "faulty_torn"
    FAULTY_CORRUPT = "faulty_corrupt"
    REFUSE = "refuse"


FAULTY = frozenset({RecoveryDecision.FAULTY_TORN, RecoveryDecision.FAULTY_CORRUPT})


@dataclass(frozen=True, slots=True)
class Facts:
    """The six inputs of the decision table."""

    intact: bool
    superseded: bool
    above_durable: bool
    above_commit: bool
    torn: bool
    single: bool


@dataclass(frozen=True, slots=True)
class Row:
    """One row of the table: None matches either value."""

    intact: bool | None
    superseded: bool | None
    above_durable: bool | None
    above_commit: bool | None
    torn: bool | None
    single: bool | None
    decision: RecoveryDecision

    def matches(self, facts: Facts) -> bool:
        """Return whether these facts match this row."""
        wanted = (
            (self.intact, facts.intact),
            (self.superseded, facts.superseded),
            (self.above_durable, facts.above_durable),
            (self.above_commit, facts.above_commit),
            (self.torn, facts.torn),
            (self.single, facts.single),
        )
        return all(want is None or want == fact for want, fact in wanted)


# A single replica writes every op once and cuts torn records, so none of its records is ever
# superseded: such a damaged record is corruption like any other.
DECISIONS: tuple[Row, ...] = (
    # intact, superseded, above_durable, above_commit, torn, single
    Row(True, None, None, None, None, None, RecoveryDecision.KEEP),
    Row(False, True, None, None, None, False, RecoveryDecision.IGNORE),
    Row(False, True, None, None, None, True, RecoveryDecision.REFUSE),
    Row(False, False, True, True, None, True, RecoveryDecision.CUT),
    Row(False, False, True, False, None, True, RecoveryDecision.REFUSE),
    Row(False, False, False, None, None, True, RecoveryDecision.REFUSE),
    Row(False, False, True, True, True, False, RecoveryDecision.CUT),
    Row(False, False, True, True, False, False, RecoveryDecision.FAULTY_TORN),
    Row(False, False, True, False, None, False, RecoveryDecision.FAULTY_CORRUPT),
    Row(False, False, False, None, None, False, RecoveryDecision.FAULTY_CORRUPT),
)


def decide(facts: Facts) -> RecoveryDecision:
    """Look the facts up; a test proves that exactly one row matches any facts."""
    for row in DECISIONS:
        if row.matches(facts):
            return row.decision
    raise AssertionError(f"no row of the recovery table matches {facts}")


def is_above_commit(op: int | None, inferred_op: int | None, commit: int) -> bool:
    """Return whether a single replica's lost record is of an op that nothing known has committed:
    its own op, or else the one after that of the record before. An unknown op may be committed.
    """
    told = inferred_op if op is None else op
    return told is not None and told > commit
