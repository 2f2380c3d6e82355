"""Which log a view begins with: a pure function of the votes.

Entries at or below the highest commit point of the votes are committed and not in question. Above
it the votes with the highest log view are *canonical*: their logs hold everything that was
committed in any view. An entry may be cut off only if it was provably never committed: either no
canonical log holds it, or enough replicas provably never held it (*nacks*) that no commit quorum
can exist. A damaged record is no nack: its replica may have vouched for it.

Two canonical logs can differ above the commit point: a replica may have crashed while it adopted a
later view's log. The entry of the later view is preferred. Neither is committed, because the later
view's log, chosen by a quorum, holds everything that is.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

from coordinator.vsr.errors import check
from coordinator.vsr.messages import DoViewChangeMessage, PrepareHeader
from coordinator.vsr.quorum import Quorums


@dataclass(frozen=True, slots=True)
class AwaitingVotes:
    """Fewer votes than a view-change quorum."""


@dataclass(frozen=True, slots=True)
class AwaitingRepair:
    """These votes cannot tell what entry `op` is; another vote may settle it."""

    op: int


@dataclass(frozen=True, slots=True)
class Chosen:
    """The log ends at `head_op`; all up to `commit` is committed, and `source` knew that.

    `headers` are the log's entries after `commit`, preceded by the committed entries that the
    votes hold, in op order.
    """

    commit: int
    source: int
    headers: tuple[PrepareHeader, ...]
    head_op: int


@dataclass(frozen=True, slots=True)
class Unrecoverable:
    """Every replica voted, and the votes still cannot tell what entry `op` is."""

    op: int


Choice: TypeAlias = AwaitingVotes | AwaitingRepair | Chosen | Unrecoverable


@dataclass(frozen=True, slots=True)
class HeldByVote:
    """A vote holds this entry, intact and durable."""

    header: PrepareHeader


@dataclass(frozen=True, slots=True)
class Absent:
    """A vote certainly never held an entry that continues the log chosen so far."""


@dataclass(frozen=True, slots=True)
class Unknown:
    """A vote may have held such an entry: the record is damaged."""


Finding: TypeAlias = HeldByVote | Absent | Unknown
ABSENT = Absent()
UNKNOWN = Unknown()


def choose(votes: Sequence[DoViewChangeMessage], replica_count: int, quorums: Quorums) -> Choice:
    """Choose the log by these votes, at most one of each replica, in any order.

    Raises InvariantViolation if two entries of one op and one view differ: a primary sequences
    one entry per op.
    """
    if len(votes) < quorums.view_change:
        return AwaitingVotes()
    ordered = sorted(votes, key=lambda vote: vote.from_replica)
    source = max(ordered, key=lambda vote: (vote.commit, vote.log_view))
    chosen: list[PrepareHeader] = []
    last_committed = checksum_of_committed(ordered, source.commit)
    while True:
        op = source.commit + len(chosen) + 1
        parent = chosen[-1].checksum if chosen else last_committed
        verdict = judge(ordered, op, parent, replica_count - quorums.replication + 1)
        if verdict is None:
            headers = (*known_committed(ordered, source.commit), *chosen)
            return Chosen(source.commit, source.from_replica, headers, op - 1)
        if isinstance(verdict, Unknown):
            return Unrecoverable(op) if len(votes) == replica_count else AwaitingRepair(op)
        chosen.append(verdict)


def checksum_of_committed(votes: Sequence[DoViewChangeMessage], commit: int) -> bytes | None:
    """Return the checksum of the entry at the highest commit point; None if no vote knows it.

    Only votes that know of this commit count: they hold the entry, or the next one, which names
    it. A vote whose own commit point is lower may hold another entry there.
    """
    headers = [header for vote in votes if vote.commit == commit for header in vote.headers]
    known = [header.checksum for header in headers if header.op == commit]
    known += [header.parent for header in headers if header.op == commit + 1]
    check(len(set(known)) <= 1, "one entry is committed per op", commit)
    return known[0] if known else None


def known_committed(votes: Sequence[DoViewChangeMessage], commit: int) -> list[PrepareHeader]:
    """Return the entries up to `commit` that the votes hold and prove committed.

    The hash chain from the highest commit point identifies these entries; a vote's log may be
    stale. Being canonical is no proof: the commit point may be of a later view that began without
    a late vote, whose log was replaced. Canonical logs are believed only where every vote that
    knows of the commit has the entry damaged.
    """
    checksum = checksum_of_committed(votes, commit)
    if checksum is None:
        return canonical_up_to(votes, commit)
    held = {header.checksum: header for vote in votes for header in vote.headers}
    known: list[PrepareHeader] = []
    while checksum in held:
        known.append(held[checksum])
        checksum = known[-1].parent
    return known[::-1]


def canonical_up_to(votes: Sequence[DoViewChangeMessage], commit: int) -> list[PrepareHeader]:
    """Return the entries up to `commit` that canonical votes hold."""
    log_view = max(vote.log_view for vote in votes)
    known: dict[int, PrepareHeader] = {}
    for header in (each for vote in votes if vote.log_view == log_view for each in vote.headers):
        if header.op <= commit:
            same = known.setdefault(header.op, header)
            check(same.checksum == header.checksum, "one entry is committed per op", header.op)
    return [known[op] for op in sorted(known)]


def judge(
    votes: Sequence[DoViewChangeMessage], op: int, parent: bytes | None, nack_quorum: int
) -> PrepareHeader | Unknown | None:
    """Return the entry with which the log continues at `op`; None if the log ends before."""
    log_view = max(vote.log_view for vote in votes)
    canonical = [vote for vote in votes if vote.log_view == log_view]
    if all(finding(vote, op, parent) == ABSENT for vote in canonical):
        return None
    findings = [finding(vote, op, parent) for vote in votes]
    checksum = candidate(votes, canonical, op, parent)
    if checksum is None:
        return eliminate(findings, nack_quorum)
    if nacks(findings, checksum) >= nack_quorum:
        return None
    copies = [
        f.header for f in findings if isinstance(f, HeldByVote) and f.header.checksum == checksum
    ]
    return copies[0] if copies else UNKNOWN


def finding(vote: DoViewChangeMessage, op: int, parent: bytes | None) -> Finding:
    """Return what a vote says about an entry at `op` that follows `parent`; None is any parent."""
    header = entry_at(vote, op)
    if header is not None:
        return HeldByVote(header) if parent in (None, header.parent) else ABSENT
    if op in vote.faulty or (op > vote.head_op and vote.head_uncertain):
        return UNKNOWN
    check(op > vote.head_op, "a vote accounts for every entry up to its head", (op, vote))
    return ABSENT


def entry_at(vote: DoViewChangeMessage, op: int) -> PrepareHeader | None:
    """Return the entry that a vote holds at `op`; its headers are in op order."""
    place = bisect_left(vote.headers, op, key=lambda header: header.op)
    is_held = place < len(vote.headers) and vote.headers[place].op == op
    return vote.headers[place] if is_held else None


def nacks(findings: Sequence[Finding], checksum: bytes | None) -> int:
    """Count the votes that certainly never held the entry; None is an entry that nobody holds."""
    return sum(
        found.header.checksum != checksum if isinstance(found, HeldByVote) else found == ABSENT
        for found in findings
    )


def eliminate(findings: Sequence[Finding], nack_quorum: int) -> PrepareHeader | Unknown | None:
    """Decide by elimination where no canonical log can tell: an entry that others hold, or none.

    An entry that no vote holds intact cannot be kept; it must be certain that it never committed.
    """
    if nacks(findings, None) < nack_quorum:
        return UNKNOWN
    held = {
        found.header.checksum: found.header for found in findings if isinstance(found, HeldByVote)
    }
    possible = [held[each] for each in sorted(held) if nacks(findings, each) < nack_quorum]
    if len(possible) > 1:
        return UNKNOWN
    return possible[0] if possible else None


def candidate(
    votes: Sequence[DoViewChangeMessage],
    canonical: Sequence[DoViewChangeMessage],
    op: int,
    parent: bytes | None,
) -> bytes | None:
    """Return the checksum of the canonical logs' entry at `op`; None if none of them can tell.

    Where the record is damaged, the next entry still names it as its parent.
    """
    held = [found.header for found in map_findings(canonical, op, parent)]
    if held:
        check_one_per_view(held)
        return max(held, key=lambda header: header.view).checksum
    damaged = [vote for vote in canonical if finding(vote, op, parent) == UNKNOWN]
    following = [entry_at(vote, op + 1) for vote in damaged]
    later = [header for header in following if header is not None]
    return max(later, key=lambda header: header.view).parent if later else None


def map_findings(
    votes: Sequence[DoViewChangeMessage], op: int, parent: bytes | None
) -> list[HeldByVote]:
    """Return the entries that these votes hold at `op`."""
    found = [finding(vote, op, parent) for vote in votes]
    return [each for each in found if isinstance(each, HeldByVote)]


def check_one_per_view(headers: Sequence[PrepareHeader]) -> None:
    """Check one entry per op and view: a view has one primary, which sequences each op once."""
    by_view: dict[int, bytes] = {}
    for header in headers:
        known = by_view.setdefault(header.view, header.checksum)
        check(known == header.checksum, "a view has one entry per op", (header.view, header.op))
