"""Members that show no life are told to the primary, in time and in steps."""

from __future__ import annotations

import pytest

from services.consumer_groups.domain import DOMAIN
from services.runtime import liveness
from tests.services.consumer_groups.harness import GROUP_NAME, GroupsHarness, refused, settled
from viewstamp import limits
from viewstamp.api.consumer_groups.v1 import consumer_groups_service_pb2 as api
from viewstamp.api.domain.v1.domain_service_pb2 import Tenure

STEP_MS = limits.MEMBER_CHECK_INTERVAL_MS
TIMEOUT_MS = limits.MEMBER_TIMEOUT_US // 1_000
STEPS_TO_SILENCE = TIMEOUT_MS // STEP_MS


class Primary:
    """Counts how long it has led, and asks for the silent members of a harness."""

    def __init__(self, harness: GroupsHarness, number: int = 1, step_ms: int = STEP_MS) -> None:
        self.harness = harness
        self.number = number
        self.step_ms = step_ms
        self.elapsed_ms = 0

    def check(self, steps: int = 1) -> list[int]:
        """Check so many times; return the sessions that the last check proposes to remove."""
        for _ in range(steps):
            self.elapsed_ms += self.step_ms
            tenure = Tenure(number=self.number, elapsed_ms=self.elapsed_ms)
            found = list(DOMAIN.silent(self.harness.state, tenure))
        self.harness.pending += found
        return [api.ExpireMemberRequest.FromString(each.request).session_id for each in found]


def keep_alive(
    harness: GroupsHarness, session: int, epoch: int | None = None, known: int = 0
) -> api.KeepAliveConsumerGroupResponse:
    """Let a member show life, in its epoch unless the test names another."""
    named = harness.member(session).member_epoch if epoch is None else epoch
    request = api.KeepAliveConsumerGroupRequest(member_epoch=named, known_assignment=known)
    request.group.name = GROUP_NAME
    answer: api.KeepAliveConsumerGroupResponse = harness.query(
        "KeepAliveConsumerGroup", request, session=session
    )
    return answer


def test_a_silent_member_is_removed() -> None:
    """Only who showed no life for the timeout is removed; others get its share."""
    harness = settled([11, 12], partitions_count=4)
    primary = Primary(harness)
    primary.check()
    for _ in range(STEPS_TO_SILENCE - 1):
        keep_alive(harness, 12)
        assert primary.check() == []
    keep_alive(harness, 12)
    assert primary.check() == [11]
    harness.settle()
    assert [(m.session_id, m.owned) for m in harness.members()] == [(12, (0, 1, 2, 3))]


@pytest.mark.parametrize("sign", ["keep alive", "heartbeat", "join"])
def test_signs_of_life(sign: str) -> None:
    """A call of its own, a heartbeat in the log and a new join each give the full time anew."""
    harness = settled([11])
    primary = Primary(harness)
    primary.check(STEPS_TO_SILENCE)
    if sign == "keep alive":
        keep_alive(harness, 11)
    elif sign == "heartbeat":
        harness.truthful(11)
    else:
        harness.leave(11)
        harness.join(11)
    # All of them count from the next check on.
    assert primary.check(STEPS_TO_SILENCE) == []
    assert primary.check() == [11]


@pytest.mark.parametrize(
    ("members_count", "timeout_ms", "interval_ms"),
    [
        (1_000, 45_000, 5_000),
        (2_000, 45_000, 5_000),
        (3_000, 45_000, 7_500),
        (6_000, 45_000, 15_000),  # a third of the timeout
        (10_000, 45_000, 15_000),
        (10_000, 36_000, 12_000),
        (10_000, 600_000, 15_000),  # so that they hear of changes
        (10_000, 6_000, 5_000),  # never more often than without the others
    ],
)
def test_many_members_show_life_less_often(
    members_count: int, timeout_ms: int, interval_ms: int
) -> None:
    """Settled members are asked for few signs of life together, and each for three in its
    timeout."""
    harness = settled([11])
    member = harness.member(11)._replace(member_timeout_ms=timeout_ms)
    harness.state.members.put((member.group_id, 11), member)
    for number in range(1, members_count):
        harness.state.members.put((10**6, number), member)
    assert keep_alive(harness, 11).interval_ms == interval_ms


def test_what_is_taken_back_leaves_nothing() -> None:
    """A join that is only validated is remembered by nobody, and a member that is gone is not."""
    harness = settled([11])
    Primary(harness).check()
    request = api.JoinConsumerGroupRequest(validate_only=True)
    request.group.name = GROUP_NAME
    harness.command("JoinConsumerGroup", request, session=12)
    harness.leave(11)
    assert harness.state.liveness.count == 0


def test_who_comes_back_too_late_has_to_join_again() -> None:
    """A member whose removal was proposed is told of no partitions: others may own them soon."""
    harness = settled([11])
    primary = Primary(harness)
    primary.check(STEPS_TO_SILENCE)
    assert primary.check() == [11]
    assert refused(lambda: keep_alive(harness, 11)) == "OVERLOADED"
    harness.truthful(11)
    assert primary.check() == [11]
    harness.propose_all()
    assert refused(lambda: keep_alive(harness, 11, epoch=1)) == "NOT_A_MEMBER"
    primary.check()
    assert harness.state.liveness.count == 0
    harness.join(11)
    assert keep_alive(harness, 11).timeout_ms == TIMEOUT_MS


@pytest.mark.parametrize("again", ["a new primary", "a removal that is taken back"])
def test_who_leaves_until_when(again: str) -> None:
    """A new primary gives the full time anew; what is taken back of commands changes nothing."""
    harness = settled([11])
    primary = Primary(harness)
    assert primary.check(STEPS_TO_SILENCE + 1) == [11]
    harness.pending.clear()
    if again == "a new primary":
        Primary(harness, number=2).check()
        assert keep_alive(harness, 11).timeout_ms == TIMEOUT_MS
    else:
        request = api.LeaveConsumerGroupRequest(validate_only=True)
        request.group.name = GROUP_NAME
        harness.command("LeaveConsumerGroup", request, session=11)
        assert refused(lambda: keep_alive(harness, 11)) == "OVERLOADED"


def test_a_new_primary_gives_everybody_the_full_time() -> None:
    """What was heard or missed in an earlier tenure, or by an earlier process, counts no more."""
    harness = settled([11])
    Primary(harness).check(STEPS_TO_SILENCE)
    second = Primary(harness, number=2)
    second.elapsed_ms = 10 * TIMEOUT_MS
    assert second.check(STEPS_TO_SILENCE) == []
    restarted = Primary(harness, number=2)
    assert restarted.check(STEPS_TO_SILENCE) == []
    assert restarted.check() == [11]


def test_a_group_may_have_another_timeout() -> None:
    """The timeout of its group decides how long a member may be silent."""
    harness = GroupsHarness()
    request = api.CreateConsumerGroupRequest(name=GROUP_NAME, member_timeout_ms=10_000)
    harness.command("CreateConsumerGroup", request)
    harness.join(11)
    primary = Primary(harness)
    assert primary.check(10_000 // STEP_MS) == []
    assert keep_alive(harness, 11).timeout_ms == 10_000
    assert primary.check(10_000 // STEP_MS) == []
    assert primary.check() == [11]


def test_members_are_looked_at_in_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    """A check looks at some members and removes some; the next ones go on behind these."""
    monkeypatch.setattr(liveness, "MEMBERS_CHECKED_MAX", 4)
    monkeypatch.setattr(liveness, "MEMBERS_EXPIRED_MAX", 3)
    harness = GroupsHarness()
    harness.create()
    for session in range(1, 8):
        harness.join(session)
    primary = Primary(harness)
    assert primary.check(STEPS_TO_SILENCE) == []
    found = [primary.check() for _ in range(4)]  # the first one looks at those that came second
    assert found == [[], [1, 2, 3], [4, 5, 6], [7]]


def test_what_a_member_is_told() -> None:
    """The answer has what the member should hold, unless it knows, and whether to say something."""
    harness = settled([11], partitions_count=4)
    answer = keep_alive(harness, 11)
    assert (answer.must_heartbeat, list(answer.owned_partitions)) == (False, [0, 1, 2, 3])
    assert answer.timeout_ms == TIMEOUT_MS
    again = keep_alive(harness, 11, known=answer.assignment)
    assert (again.partitions_omitted, list(again.owned_partitions)) == (True, [])
    harness.join(12)
    harness.propose_all()
    news = keep_alive(harness, 11, known=answer.assignment)
    assert (news.must_heartbeat, list(news.revoking_partitions)) == (True, [2, 3])
    harness.truthful(11)
    assert not keep_alive(harness, 11).must_heartbeat


def test_who_cannot_show_life() -> None:
    """No member, one of an old epoch and a caller without a session are refused."""
    harness = settled([11])
    assert refused(lambda: keep_alive(harness, 12, epoch=1)) == "NOT_A_MEMBER"
    assert refused(lambda: keep_alive(harness, 0, epoch=1)) == "SESSION_REQUIRED"
    assert refused(lambda: keep_alive(harness, 11, epoch=99)) == "FENCED_MEMBER_EPOCH"


def test_signs_of_life_are_no_state() -> None:
    """A read leaves the digest and the section as they are."""
    harness = settled([11])
    digest = harness.digest()
    keep_alive(harness, 11)
    Primary(harness).check()
    assert harness.digest() == digest


@pytest.mark.parametrize("step_ms", [100, 900, 5_000])
def test_nobody_is_removed_within_its_timeout(step_ms: int) -> None:
    """However rarely a primary checks, a sign gives the timeout, and two steps more at most."""
    harness = settled([11])
    primary = Primary(harness, step_ms=step_ms)
    primary.check(2)
    heard_ms = primary.elapsed_ms + step_ms - 1  # just before the next check
    keep_alive(harness, 11)
    while not primary.check():
        assert primary.elapsed_ms < heard_ms + TIMEOUT_MS + 2 * step_ms
    assert primary.elapsed_ms >= heard_ms + TIMEOUT_MS
