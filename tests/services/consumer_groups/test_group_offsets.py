"""Offsets that groups commit: who may, and what becomes of earlier ones."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, Final

import pytest

from tests.services.consumer_groups.harness import (
    GROUP_NAME,
    GroupsHarness,
    settled,
    settled_instances,
)
from tests.services.consumer_groups.offset_requests import (
    Offsets,
    commit,
    commit_as,
    committed,
    empty_group,
    kept_offsets,
    refusal_of,
)
from viewstamp.limits import OFFSET_MAX, OFFSETS_PER_REQUEST_MAX

# The owner of partitions 0 and 1, that of 2 and 3, and who has left its place with 4 and 5.
OWNER, OTHER, AWAY = 11, 12, 13
STRANGER, BROKER = 14, 99
OTHER_USER = 4


def readers() -> GroupsHarness:
    """Return a group with two members that are settled, and one that is away."""
    harness = settled_instances({OWNER: "", OTHER: "", AWAY: "static"}, partitions_count=6)
    harness.leave(AWAY, keep_place=True)
    owned = [harness.member(session).owned for session in (OWNER, OTHER, AWAY)]
    assert owned == [(0, 1), (2, 3), (4, 5)]
    return harness


# --- Who commits ---

COMMITS: Final[dict[str, dict[str, Any]]] = {
    "a member": {"session": OWNER},
    "a member that names its own session": {"session": OWNER, "session_id": OWNER},
    # A session may serve several users, as in heartbeats.
    "another user in the member's session": {"session": OWNER, "user": OTHER_USER},
    "another user that names the member's session, its own": {
        "session": OWNER,
        "session_id": OWNER,
        "user": OTHER_USER,
    },
    "a broker of the same user": {"session": BROKER, "session_id": OWNER},
    "a broker without a session": {"session_id": OWNER},
    "another member of the same user": {"session": OTHER, "session_id": OWNER},
    "a broker of another user that manages the topic": {
        "session": BROKER,
        "session_id": OWNER,
        "user": OTHER_USER,
        "manages": True,
    },
}


@pytest.mark.parametrize("who", COMMITS)
def test_offsets_of_a_member_are_stored(who: str) -> None:
    """The member itself commits, and who acts for it; others' offsets stay as they are."""
    harness = readers()
    commit_as(harness, OTHER, {2: 20})
    epoch = harness.member(OWNER).member_epoch
    commit(harness, {1: 7, 0: 5}, epoch=epoch, **COMMITS[who])
    assert committed(harness) == {0: 5, 1: 7, 2: 20}
    assert kept_offsets(harness) == {(1, 0): 5, (1, 1): 7, (1, 2): 20}


# What is sent, the reason of the refusal, and some of its details.
Refused = tuple[Offsets, dict[str, Any], str, dict[str, str]]
REFUSALS: Final[dict[str, Refused]] = {
    "a partition of another member": (
        {2: 1},
        {"session": OWNER},
        "PARTITION_NOT_OWNED",
        {"partition": "2", "session_id": "11", "group_id": "1"},
    ),
    "one partition of another member": (
        {0: 1, 1: 1, 3: 1},
        {"session": OWNER},
        "PARTITION_NOT_OWNED",
        {"partition": "3"},
    ),
    "a partition of a member that is away": (
        {4: 1},
        {"session": OWNER},
        "PARTITION_NOT_OWNED",
        {"partition": "4"},
    ),
    "a partition of another member, in the name of one": (
        {2: 1},
        {"session": OTHER, "session_id": OWNER},
        "PARTITION_NOT_OWNED",
        {"session_id": "11"},
    ),
    "no member": ({0: 1}, {"session": STRANGER}, "NOT_A_MEMBER", {"session_id": "14"}),
    "a member that is away": ({4: 1}, {"session": AWAY}, "NOT_A_MEMBER", {"session_id": "13"}),
    "no session": ({0: 1}, {}, "SESSION_REQUIRED", {}),
    "no session and no epoch": ({0: 1}, {"epoch": 0}, "SESSION_REQUIRED", {}),
    "no epoch": ({0: 1}, {"session": OWNER, "epoch": 0}, "FENCED_MEMBER_EPOCH", {"epoch": "0"}),
    "a later epoch": (
        {0: 1},
        {"session": OWNER, "epoch": 99},
        "FENCED_MEMBER_EPOCH",
        {"epoch": "99", "session_id": "11"},
    ),
    "a broker with a later epoch": (
        {0: 1},
        {"session": BROKER, "session_id": OWNER, "epoch": 99},
        "FENCED_MEMBER_EPOCH",
        {"session_id": "11"},
    ),
    "a broker of another user": (
        {0: 1},
        {"session": BROKER, "session_id": OWNER, "user": OTHER_USER},
        "PERMISSION_DENIED",
        {"user_id": "4", "permission": "manage_topic"},
    ),
    "a broker for no member": (
        {0: 1},
        {"session": BROKER, "session_id": STRANGER, "manages": True},
        "NOT_A_MEMBER",
        {"session_id": "14"},
    ),
    "a broker that is not a member itself": (
        {0: 1},
        {"session": BROKER, "manages": True},
        "NOT_A_MEMBER",
        {"session_id": "99"},
    ),
    "a broker for a member that is away": (
        {4: 1},
        {"session": BROKER, "session_id": AWAY},
        "NOT_A_MEMBER",
        {"session_id": "13"},
    ),
    "a partition that is not there": (
        {0: 1, 6: 1},
        {"session": OWNER},
        "PARTITION_NOT_FOUND",
        {"partition": "6", "existing": "6"},
    ),
    "one partition twice": ([(0, 1), (0, 2)], {"session": OWNER}, "MALFORMED_REQUEST", {}),
    "one offset twice": ([(0, 1), (0, 1)], {"session": OWNER}, "MALFORMED_REQUEST", {}),
    "no partition": ({}, {"session": OWNER}, "MALFORMED_REQUEST", {"offsets_count": "0"}),
    "too many partitions": (
        [(0, 1)] * (OFFSETS_PER_REQUEST_MAX + 1),
        {"session": OWNER},
        "MALFORMED_REQUEST",
        {"offsets_count": "16385", "limit": "16384"},
    ),
    "an impossible offset": (
        {0: 1, 1: OFFSET_MAX + 1},
        {"session": OWNER, "allow_out_of_range": True},
        "OFFSET_OUT_OF_RANGE",
        {"offset": "9223372036854775808", "limit": "9223372036854775807"},
    ),
    "the highest number of 64 bits": (
        {0: 2**64 - 1, 1: 1},
        {"session": OWNER, "allow_out_of_range": True},
        "OFFSET_OUT_OF_RANGE",
        {"offset": "18446744073709551615"},
    ),
}


@pytest.mark.parametrize("case", REFUSALS)
def test_a_refused_commit_changes_nothing(case: str) -> None:
    """Nothing of such a commit is stored, and the refusal says what was wrong."""
    offsets, fields, reason, details = REFUSALS[case]
    harness = readers()
    sent = {"epoch": harness.member(OWNER).member_epoch, **fields}
    refusal = refusal_of(harness, lambda: commit(harness, offsets, **sent))
    assert refusal.name == reason
    assert details.items() <= refusal.details.items()
    assert committed(harness) == {}


def test_an_own_group_alone_is_committed_to() -> None:
    """A member of one group is none of another, and offsets are kept for each group."""
    harness = readers()
    harness.create("second")
    epoch = harness.join(OWNER, name="second")
    harness.propose_all()
    commit(harness, {0: 5}, session=OWNER, epoch=epoch, name="second")
    commit_as(harness, OWNER, {0: 9})
    assert (committed(harness), committed(harness, "second")) == ({0: 9}, {0: 5})
    harness.create("third")
    refusal = refusal_of(harness, lambda: commit_late(harness, epoch, "third"))
    assert refusal.name == "NOT_A_MEMBER"


def test_who_gives_a_partition_up_commits_it_until_it_has_done_so() -> None:
    """A partition that is handed over is committed by its former owner first, then by the next."""
    harness = settled([OWNER], partitions_count=4)
    harness.join(OTHER)
    harness.propose_all()
    assert (harness.member(OWNER).revoking, harness.member(OTHER).owned) == ((2, 3), ())
    commit_as(harness, OWNER, {0: 1, 3: 5})
    refusal = refusal_of(harness, lambda: commit_as(harness, OTHER, {3: 9}))
    assert (refusal.name, refusal.details["partition"]) == ("PARTITION_NOT_OWNED", "3")
    harness.settle()
    commit_as(harness, OTHER, {3: 6})
    refusal = refusal_of(harness, lambda: commit_as(harness, OWNER, {3: 9}))
    assert (refusal.name, refusal.details["partition"]) == ("PARTITION_NOT_OWNED", "3")
    assert committed(harness) == {0: 1, 3: 6}


def test_only_the_present_epoch_is_accepted() -> None:
    """A late commit of an earlier tenure does not count, not even one of the epoch before."""
    harness = settled([OWNER])
    harness.change_partitions(13)
    harness.settle()
    member = harness.member(OWNER)
    assert member.previous_member_epoch == member.member_epoch - 1
    commit(harness, {0: 1}, session=OWNER, epoch=member.member_epoch)
    assert committed(harness) == {0: 1}
    for wrong in (1, -1, -2):
        refusal = refusal_of(harness, partial(commit_late, harness, member.member_epoch + wrong))
        assert refusal.name == "FENCED_MEMBER_EPOCH"


def commit_late(harness: GroupsHarness, epoch: int, name: str = GROUP_NAME) -> None:
    """Commit as a member that knows an epoch."""
    commit(harness, {0: 9}, session=OWNER, epoch=epoch, name=name)


def test_a_member_that_has_left_commits_no_more() -> None:
    """What a former member read last does not overwrite what its successors commit."""
    harness = settled([OWNER])
    epoch = harness.member(OWNER).member_epoch
    harness.leave(OWNER)
    assert refusal_of(harness, lambda: commit_late(harness, epoch)).name == "NOT_A_MEMBER"
    commit(harness, {0: 5})
    assert committed(harness) == {0: 5}


@pytest.mark.parametrize("session", [0, STRANGER])
def test_a_group_without_members_takes_epoch_0(session: int) -> None:
    """Who reads without a group's help commits in a session or in none."""
    harness = empty_group()
    commit(harness, {5: 8}, session=session)
    assert committed(harness) == {5: 8}


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"epoch": 1}, "SESSION_REQUIRED"),
        ({"epoch": 1, "session": STRANGER}, "NOT_A_MEMBER"),
        ({"session_id": STRANGER}, "NOT_A_MEMBER"),
        ({"session": STRANGER, "session_id": STRANGER}, "NOT_A_MEMBER"),
    ],
)
def test_a_group_without_members_takes_no_members_commit(
    fields: dict[str, Any], reason: str
) -> None:
    """Who takes itself for a member, or acts for one, hears that it is none."""
    harness = empty_group()
    assert refusal_of(harness, lambda: commit(harness, {0: 1}, **fields)).name == reason


def test_a_group_whose_only_member_is_away_has_a_member() -> None:
    """Nobody commits for a place that waits."""
    harness = settled_instances({OWNER: "static"})
    harness.leave(OWNER, keep_place=True)
    assert refusal_of(harness, lambda: commit(harness, {0: 1})).name == "SESSION_REQUIRED"


# --- What is stored ---


def test_an_offset_may_go_back() -> None:
    """Who reads a part again commits lower offsets, which replace the higher ones."""
    harness = settled([OWNER])
    for offset in (9, 5, 0, OFFSET_MAX, 1):
        commit_as(harness, OWNER, {3: offset})
        assert committed(harness) == {3: offset}


def test_an_equal_offset_changes_nothing() -> None:
    """A commit that is sent again leaves the state as it is."""
    harness = settled([OWNER])
    commit_as(harness, OWNER, {3: 5})
    before = harness.digest()
    commit_as(harness, OWNER, {3: 5})
    assert harness.digest() == before


@pytest.mark.parametrize(
    "send",
    [
        lambda harness: commit_as(harness, OWNER, {0: 6}, validate_only=True),
        lambda harness: commit(harness, {0: 6}, name="second", validate_only=True),
    ],
)
def test_a_commit_that_is_only_validated_changes_nothing(
    send: Callable[[GroupsHarness], None],
) -> None:
    """It answers as if it had taken effect."""
    harness = settled([OWNER])
    harness.create("second")
    commit_as(harness, OWNER, {0: 5})
    before = harness.digest()
    send(harness)
    assert harness.digest() == before
    assert committed(harness) == {0: 5}
