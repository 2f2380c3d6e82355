"""Replicas compare what the log led to: who is told, who ends, and who never does."""

from __future__ import annotations

from itertools import product
from typing import Final, NamedTuple

import pytest

from coordinator.app.digest_claims import CLAIMS_KEPT_PER_REPLICA, ClaimAlarms, DigestClaims
from coordinator.base.roster import Roster
from coordinator.mux.applied_digests import APPLIED_DIGESTS_KEPT, AppliedDigests
from coordinator.peers.messages import ReplicaReportMessage
from coordinator.snapshot.divergence import DivergedError

RIGHT: Final = b"right"
WRONG: Final = b"wrong"
OTHERWISE_WRONG: Final = b"otherwise wrong"


class ComparingReplica:
    """Replica `number` of `count` that vote; its answers are right unless it is told others."""

    def __init__(self, number: int = 0, count: int = 3, standbys: int = 0, cut_op: int = 0) -> None:
        self.number = number
        self.chain = AppliedDigests(cut_op)
        self.alarms: dict[int, str] = {}
        self.roster = Roster.founding(number, count, standbys)
        alarms = ClaimAlarms(self.alarms.__setitem__, self.alarms.__delitem__)
        self.claims = DigestClaims(self.chain, self.roster, alarms)

    def apply(self, count: int, answer: bytes = RIGHT) -> None:
        """Apply ops with one answer to each."""
        for _ in range(count):
            self.chain.add(self.chain.last_op + 1, answer)
            self.claims.applied(self.chain.last_op)

    def cut(self, generation: int) -> None:
        """Apply a cut."""
        self.chain.begin(self.chain.last_op + 1, generation)
        self.claims.applied(self.chain.last_op)

    def report(self, generation: int = 0) -> ReplicaReportMessage:
        """Return what this replica tells now."""
        op = self.chain.last_op
        digests = self.claims.own(op)
        return ReplicaReportMessage(
            b"", self.number, 1, 0, op, op, op, generation, "", "", 0, 0, *digests
        )

    def hear(self, *others: ComparingReplica) -> None:
        """Hear a report of each of the others."""
        for other in others:
            self.claims.heard(other.report())


def replicas(*answers: bytes, standbys: int = 0) -> list[ComparingReplica]:
    """Return replicas that came to op 12, each with its answer to op 10."""
    count = len(answers) - standbys
    made = [ComparingReplica(number, count, standbys) for number in range(len(answers))]
    for replica, answer in zip(made, answers, strict=True):
        replica.apply(9)
        replica.apply(1, answer)
        replica.apply(2)
    return made


def test_equal_replicas_say_nothing() -> None:
    """Replicas with one history agree, wherever each of them is."""
    one, two, three = replicas(RIGHT, RIGHT, RIGHT)
    two.apply(5)
    for replica, other in product((one, two, three), repeat=2):
        if replica is not other:
            replica.hear(other)
    one.apply(5)
    assert [each.alarms for each in (one, two, three)] == [{}, {}, {}]


def test_a_difference_is_told_at_both() -> None:
    """The alarm of each of two replicas names both, the op and both digests."""
    one, two = replicas(RIGHT, WRONG)
    one.hear(two)
    two.hear(one)
    (told,), (told_there,) = one.alarms.values(), two.alarms.values()
    digests = [replica.chain.at(12) for replica in (one, two)]
    for digest in digests:
        assert digest is not None and digest.hex() in told and digest.hex() in told_there
    assert "replicas 0 and 1 differ: applying the log up to op 12" in told
    assert list(one.alarms) == [1] and list(two.alarms) == [0]


ENDINGS: Final = {
    "the third of three": ((RIGHT, RIGHT, WRONG), 0, [2]),
    "two never end each other": ((RIGHT, WRONG), 0, []),
    "three that all differ": ((RIGHT, WRONG, OTHERWISE_WRONG), 0, []),
    "two of five": ((RIGHT, RIGHT, RIGHT, WRONG, OTHERWISE_WRONG), 0, [3, 4]),
    "two of four against two": ((RIGHT, RIGHT, WRONG, WRONG), 0, []),
    "one of four": ((RIGHT, RIGHT, RIGHT, WRONG), 0, [3]),
    "standbys do not count": ((RIGHT, WRONG, RIGHT, RIGHT), 2, []),
    "a standby ends": ((RIGHT, RIGHT, RIGHT, WRONG), 1, [3]),
}


@pytest.mark.parametrize(("answers", "standbys", "ended"), ENDINGS.values(), ids=ENDINGS)
def test_who_ends(answers: tuple[bytes, ...], standbys: int, ended: list[int]) -> None:
    """A replica ends if a majority of all voters contradicts it alike."""
    made = replicas(*answers, standbys=standbys)
    found = []
    for replica in made:
        try:
            replica.hear(*(other for other in made if other is not replica))
        except DivergedError:
            found.append(replica.number)
    assert found == ended


def test_one_peer_never_ends_a_replica() -> None:
    """A peer that lies about every op, again and again, raises one alarm and does no more."""
    one, liar, honest = replicas(RIGHT, WRONG, RIGHT)
    for _ in range(3 * CLAIMS_KEPT_PER_REPLICA):
        for replica in (one, liar, honest):
            replica.apply(1)
        one.hear(liar, honest, liar)
    assert list(one.alarms) == [1]


def test_the_error_names_the_majority() -> None:
    """The last words of a diverged replica name the others, the op and both digests."""
    one, two, odd = replicas(RIGHT, RIGHT, WRONG)
    odd.hear(one)
    right, wrong = one.chain.at(12), odd.chain.at(12)
    assert right is not None and wrong is not None
    words = f"op 12 had the digest {right.hex()} on replicas 0 and 1, and {wrong.hex()} on this one"
    with pytest.raises(DivergedError, match=words):
        odd.hear(two)


def test_replicas_at_different_ops_find_the_odd_one() -> None:
    """Under a steady load replicas report at different ops, and still tell some common ones."""
    one, two, odd = replicas(RIGHT, RIGHT, WRONG)
    two.apply(3)
    odd.apply(1)
    with pytest.raises(DivergedError, match="on replicas 0 and 1"):
        for _ in range(4):
            for replica in (one, two, odd):
                replica.apply(7)
            odd.hear(one, two)


def test_a_replica_behind_compares_when_it_gets_there() -> None:
    """What others tell while a replica is far behind is kept, and the oldest of it is compared."""
    one, two, behind = replicas(RIGHT, RIGHT, RIGHT)
    for _ in range(4 * CLAIMS_KEPT_PER_REPLICA):
        one.apply(9)
        two.apply(9)
        behind.hear(one, two)
    behind.apply(1, WRONG)
    with pytest.raises(DivergedError, match="on replicas 0 and 1"):
        behind.apply(9 * CLAIMS_KEPT_PER_REPLICA)


def test_claims_that_nobody_reaches_make_room() -> None:
    """Impossible ops do not keep a replica from comparing what it hears later."""
    one, other, _ = replicas(RIGHT, WRONG, RIGHT)
    honest = other.report()
    for op in range(2 * CLAIMS_KEPT_PER_REPLICA):
        op_ahead = (1 << 60) + op
        digests = (bytes(16), op_ahead, bytes(16))
        one.claims.heard(
            ReplicaReportMessage(b"", 1, 1, 0, 0, 0, op_ahead, 0, "", "", 0, 0, *digests)
        )
    assert one.alarms == {}
    behind = ComparingReplica()
    behind.claims.heard(honest)
    one.claims.heard(honest)
    assert list(one.alarms) == [1]
    behind.apply(12)
    assert list(behind.alarms) == [1]


def test_what_is_no_longer_known_is_not_compared() -> None:
    """A report from long ago says nothing about a replica, and neither does one from an old
    build."""
    one, other, _ = replicas(RIGHT, WRONG, RIGHT)
    one.apply(APPLIED_DIGESTS_KEPT)
    one.hear(other)
    one.claims.heard(ReplicaReportMessage(b"", 2, 1, 0, 12, 12, 12, 0, ""))
    assert one.alarms == {}


def test_a_replica_that_was_restored_continues_the_chain() -> None:
    """A replica that starts behind a cut agrees with those that came there by the log."""
    one, two, _ = replicas(RIGHT, RIGHT, RIGHT)
    for replica in (one, two):
        replica.cut(1)
        replica.apply(2)
    restored = ComparingReplica(2, cut_op=13)
    restored.apply(2)
    for replica, other in product((one, restored), (two, restored)):
        if replica is not other:
            replica.hear(other)
    assert (one.alarms, restored.alarms) == ({}, {})


def test_the_alarm_ends_once_the_chain_agrees() -> None:
    """A replica that was started again and replayed the log is right, and the alarm goes."""
    one, wrong, _ = replicas(RIGHT, WRONG, RIGHT)
    one.hear(wrong)
    assert list(one.alarms) == [1]
    replayed = ComparingReplica(1)
    replayed.apply(11)
    one.hear(replayed)
    assert list(one.alarms) == [1], "it has not come to that op"
    replayed.apply(1)
    one.hear(replayed)
    assert one.alarms == {}


def test_another_chain_does_not_end_the_alarm() -> None:
    """Chains agree from the next cut on, whatever was before: only a later snapshot ends it."""
    one, wrong, _ = replicas(RIGHT, WRONG, RIGHT)
    one.hear(wrong)
    for replica in (one, wrong):
        replica.cut(1)
        replica.apply(2)
    one.hear(wrong)
    one.claims.heard(wrong.report(generation=0))
    assert list(one.alarms) == [1]
    one.claims.heard(wrong.report(generation=1))
    assert one.alarms == {}


class ClaimsStep(NamedTuple):
    """Members that begin an epoch, if any; then the replicas that are heard."""

    members: tuple[tuple[int, ...], tuple[int, ...]] | None
    heard: tuple[int, ...]


# The answers of replicas from 0 on; how many of them vote; what happens to the first; its alarms.
CHANGES: Final = {
    "two of five become two of three": (
        (WRONG, *(RIGHT,) * 4),
        5,
        [ClaimsStep(None, (1, 2)), ClaimsStep(((0, 1, 2), ()), (1,))],
        None,
    ),
    "two of three become two of five": (
        (WRONG, *(RIGHT,) * 4),
        3,
        [ClaimsStep(None, (1,)), ClaimsStep(((0, 1, 2, 3, 4), ()), (1, 2)), ClaimsStep(None, (1,))],
        [1, 2],
    ),
    "the third new voter of five": (
        (WRONG, *(RIGHT,) * 4),
        3,
        [ClaimsStep(None, (1,)), ClaimsStep(((0, 1, 2, 3, 4), ()), (1, 2, 4))],
        None,
    ),
    "a removed replica does not count": (
        (WRONG, *(RIGHT,) * 3),
        3,
        [ClaimsStep(None, (1,)), ClaimsStep(((0, 2, 3), ()), (1, 2, 1, 2))],
        [2],
    ),
    "its place is taken": (
        (WRONG, *(RIGHT,) * 3),
        3,
        [ClaimsStep(None, (1,)), ClaimsStep(((0, 2, 3), ()), (2, 3))],
        None,
    ),
    "a standby does not count": (
        (WRONG, *(RIGHT,) * 3),
        3,
        [ClaimsStep(((0, 1, 2), (3,)), (1, 3, 1, 3))],
        [1, 3],
    ),
    "a promoted standby counts": (
        (WRONG, *(RIGHT,) * 3),
        3,
        [ClaimsStep(((0, 1, 2), (3,)), (1, 3)), ClaimsStep(((0, 1, 3), ()), (1,))],
        None,
    ),
    "nobody is heard before it is a member": (
        (WRONG, *(RIGHT,) * 3),
        3,
        [ClaimsStep(None, (3, 1)), ClaimsStep(((0, 1, 2, 3), ()), ())],
        [1],
    ),
    "one that is removed itself": (
        (WRONG, *(RIGHT,) * 2),
        3,
        [ClaimsStep(None, (1,)), ClaimsStep(((1, 2), ()), (2,))],
        None,
    ),
    "a standby beside a lone voter": (
        (WRONG, *(RIGHT,) * 2),
        3,
        [ClaimsStep(((1,), (0,)), (1, 1, 2))],
        [1],
    ),
}


@pytest.mark.parametrize(("answers", "voters", "steps", "left"), CHANGES.values(), ids=CHANGES)
def test_who_counts_as_members_change(
    answers: tuple[bytes, ...], voters: int, steps: list[ClaimsStep], left: list[int] | None
) -> None:
    """A replica ends by a majority of the voters of the moment; alarms are those of members."""
    made = replicas(*answers)
    odd = ComparingReplica(count=voters)
    odd.apply(9)
    odd.apply(1, answers[0])
    odd.apply(2)
    has_ended = False
    for members, heard in steps:
        assert not has_ended, "the last step alone ends it"
        if members is not None:
            odd.roster.enter(*members)
        try:
            odd.hear(*(made[number] for number in heard))
        except DivergedError:
            has_ended = True
    assert has_ended is (left is None)
    assert left is None or sorted(odd.alarms) == left


def test_the_alarm_of_a_removed_replica_ends_at_once() -> None:
    """Nobody waits for a report: the replica is no member any more. Others keep their alarms."""
    odd, *others = replicas(WRONG, RIGHT, OTHERWISE_WRONG)
    odd.hear(*others)
    assert sorted(odd.alarms) == [1, 2]
    odd.roster.enter((0, 2), ())
    assert sorted(odd.alarms) == [2]
    odd.roster.enter((0,), ())
    assert odd.alarms == {}


def test_what_a_removed_replica_told_ahead_is_not_compared() -> None:
    """What a member said of an op that is not applied here is dropped once it is removed."""
    one, wrong, _ = replicas(RIGHT, RIGHT, RIGHT)
    wrong.apply(3, WRONG)
    one.hear(wrong)
    one.roster.enter((0, 2), ())
    one.apply(3)
    assert one.alarms == {}
