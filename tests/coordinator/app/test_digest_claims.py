"""Replicas compare what the log led to: who is told, who ends, and who never does."""

from __future__ import annotations

from itertools import product
from typing import Final

import pytest

from coordinator.app.digest_claims import CLAIMS_KEPT_PER_REPLICA, ClaimAlarms, DigestClaims
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
        others = [each for each in range(count + standbys) if each != number]
        alarms = ClaimAlarms(self.alarms.__setitem__, self.alarms.__delitem__)
        self.claims = DigestClaims(self.chain, number, count, others, alarms)

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
