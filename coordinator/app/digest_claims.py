"""What the replicas tell each other of their digests, and what follows if two of them differ.

Each report carries digests of the chain of `coordinator.mux.applied_digests` at two ops: the last
applied one, so that a difference is seen with the next report, and one that the other replicas tell
too, so that three replicas can be compared at one op. A replica compares a digest with its own of
that op. It keeps a few digests of ops that it has not applied yet, those of the lowest ops: so it
compares some, however far behind it is, and however long it stays there.

Two unequal digests raise an alarm at both replicas. It names both replicas, the op and the digests,
and does not say who is wrong: nobody can tell from two.

A replica ends, as one does whose snapshot has another root, once a majority of all voters has told
one digest of one op, and this replica has another. Reports are soft, and without mutual TLS nobody
proves who sends them. So the word of one peer never ends a replica, whatever that peer says and
however often: each counts once, at one op, and it takes two, also of a standby beside a lone voter.
Of two replicas neither ends. Of three the one ends that both others contradict alike. If all differ
from each other, none ends, and the next snapshot decides. Those who agree stay, and they are a
majority: so this never ends a cluster.

The voters are those of the moment. What a removed replica said counts no more, and its alarm ends.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from coordinator.base.roster import Roster
from coordinator.mux.applied_digests import APPLIED_DIGEST_BYTES, AppliedDigests
from coordinator.peers.messages import ReplicaReportMessage
from coordinator.snapshot.divergence import contradicted_by_majority, words_about_digests

# Digests of ops that are not applied here yet, and digests that differed, of one replica. A report
# has two: they are those of the first four seconds in which the other one was ahead.
CLAIMS_KEPT_PER_REPLICA: Final = 16
# So many others must contradict a replica, however few have a vote.
CONTRADICTIONS_MIN: Final = 2


@dataclass(frozen=True, slots=True)
class ClaimAlarms:
    """The alarms about other replicas: `tell` with the replica and a text, `clear` its alarm."""

    tell: Callable[[int, str], None]
    clear: Callable[[int], None]


@dataclass(frozen=True, slots=True)
class _Difference:
    """The first op at which a replica differed; its chain began at the cut of the generation."""

    op: int
    generation: int


@dataclass(slots=True)
class _Peer:
    ahead: dict[int, bytes] = field(default_factory=dict)
    """Digests by op, of ops that are not applied here yet."""
    differing: dict[int, bytes] = field(default_factory=dict)
    """The last digests that were not this replica's, by op."""
    difference: _Difference | None = None


class DigestClaims:
    """One replica's comparison with the other replicas of the roster."""

    def __init__(self, digests: AppliedDigests, roster: Roster, alarms: ClaimAlarms) -> None:
        self._digests = digests
        self._roster = roster
        self._alarms = alarms
        self._peers: dict[int, _Peer] = {}
        self._told_op = digests.last_op
        roster.follow(self._forget_removed)

    def _forget_removed(self) -> None:
        """End the alarms of removed replicas, which follow the log no more."""
        for replica in sorted(self._peers.keys() - set(self._roster.others)):
            peer = self._peers.pop(replica)
            if peer.difference is not None:
                self._alarms.clear(replica)

    def own(self, applied_op: int) -> tuple[bytes, int, bytes]:
        """Return what the next report tells: the digest of the last applied op; an op that others
        tell, too, and its digest."""
        common_op = self._digests.op_to_tell(self._told_op)
        self._told_op = self._digests.last_op
        return self._at(applied_op), common_op, self._at(common_op)

    def _at(self, op: int) -> bytes:
        """Return the digest of an op, empty before the first op."""
        return (self._digests.at(op) or b"") if op else b""

    def heard(self, report: ReplicaReportMessage) -> None:
        """Take the digests of another replica's report. Raises DivergedError."""
        replica = report.from_replica
        if replica not in self._roster.others:
            return
        peer = self._peers.setdefault(replica, _Peer())
        known = peer.difference
        if known is not None and report.generation > known.generation:
            self._resolve(replica, peer)  # its state at a later cut was the majority's
        self._take(replica, peer, report.applied, report.applied_digest)
        self._take(replica, peer, report.common_op, report.common_digest)

    def applied(self, op: int) -> None:
        """Compare what was kept of an op that is applied here now. Raises DivergedError."""
        for replica, peer in self._peers.items():
            digest = peer.ahead.pop(op, None) if peer.ahead else None
            if digest is not None:
                self._compare(replica, peer, op, digest)

    def _take(self, replica: int, peer: _Peer, op: int, digest: bytes) -> None:
        if len(digest) != APPLIED_DIGEST_BYTES:
            return  # its build has none, or it has applied nothing yet
        if op > self._digests.last_op:
            _keep_lowest(peer.ahead, op, digest)
        else:
            self._compare(replica, peer, op, digest)

    def _compare(self, replica: int, peer: _Peer, op: int, digest: bytes) -> None:
        own = self._digests.at(op)
        if own is None:
            return  # too old: the other one compares, once it has come to what this one tells
        if digest == own:
            self._agreed(replica, peer, op)
            return
        peer.differing[op] = digest
        if len(peer.differing) > CLAIMS_KEPT_PER_REPLICA:
            del peer.differing[min(peer.differing)]
        self._differs(replica, peer, op, digest, own)

    def _agreed(self, replica: int, peer: _Peer, op: int) -> None:
        """End the alarm if the chain that differed is now the same, as after a restart."""
        known = peer.difference
        if (
            known is not None
            and op >= known.op
            and self._digests.generation_at(op) == known.generation
        ):
            self._resolve(replica, peer)

    def _resolve(self, replica: int, peer: _Peer) -> None:
        peer.difference = None
        peer.differing.clear()
        self._alarms.clear(replica)

    def _differs(self, replica: int, peer: _Peer, op: int, digest: bytes, own: bytes) -> None:
        if peer.difference is None:
            peer.difference = _Difference(op, self._digests.generation_at(op))
            text = words_about_digests((self._roster.replica_id, own), (replica, digest), op)
            self._alarms.tell(replica, text)
        alike = [
            other
            for other in sorted(self._peers.keys() & set(self._roster.voters))
            if self._peers[other].differing.get(op) == digest
        ]
        if len(alike) >= max(self._roster.majority, CONTRADICTIONS_MIN):
            raise contradicted_by_majority(alike, digest, own, op)


def _keep_lowest(ahead: dict[int, bytes], op: int, digest: bytes) -> None:
    """Keep a digest if there is room or a higher op can go: what is kept is compared one day."""
    ahead.setdefault(op, digest)
    if len(ahead) > CLAIMS_KEPT_PER_REPLICA:
        del ahead[max(ahead)]
