"""Votes and logs that no honest replica sends are dropped on receipt, before they end any
replica."""

from __future__ import annotations

from dataclasses import replace

import pytest

from coordinator.vsr import Dropped, DropRule, ReplicaStatus
from coordinator.vsr.message_shapes import is_whole
from coordinator.vsr.messages import (
    PARENT_OF_FIRST,
    DoViewChangeMessage,
    PrepareHeader,
    StartViewMessage,
)
from tests.coordinator.vsr.cluster_harness import CLUSTER_ID, bootstrapped
from tests.coordinator.vsr.test_choice_of_log import make, vote
from viewstamp.limits import BOOT_NONCE_BYTES

ELECT, FAULTY = 1, 2
ENTRIES = 4
OP_MAX = (1 << 64) - 1


def log(*views: int) -> list[PrepareHeader]:
    """Entries from op 1 on, each the child of the one before."""
    headers: list[PrepareHeader] = []
    for op, view in enumerate(views, start=1):
        parent = headers[-1].checksum if headers else PARENT_OF_FIRST
        headers.append(make(op, view, parent))
    return headers


LOG = log(0, 0, 0, 0)
WHOLE = vote(FAULTY, LOG, commit=1)
HEADERS = WHOLE.headers
STRANGER = make(3, 0, bytes(15) + b"\x01")
VOTES = [
    ("nothing above the commit point", replace(WHOLE, headers=(), head_op=9, commit=1)),
    ("an op without entry", replace(WHOLE, headers=(*HEADERS[:1], *HEADERS[2:]))),
    ("entries out of order", replace(WHOLE, headers=HEADERS[::-1])),
    ("an entry twice", replace(WHOLE, headers=(*HEADERS[:2], *HEADERS[1:]))),
    ("another parent", replace(WHOLE, headers=(*HEADERS[:2], STRANGER, HEADERS[3]))),
    ("views that go back", vote(FAULTY, log(0, 1, 0, 0), commit=1)),
    ("an entry beyond the head", replace(WHOLE, head_op=3)),
    ("an entry before the commit point", replace(WHOLE, commit=2)),
    ("a damaged op twice", replace(WHOLE, headers=HEADERS[:3], faulty=(4, 4), head_op=5)),
    ("a damaged op that is intact", replace(WHOLE, faulty=(3,))),
    ("a damaged op beyond the head", replace(WHOLE, headers=HEADERS[:3], faulty=(9,))),
    ("a log view that has not begun", replace(WHOLE, log_view=WHOLE.view)),
    ("the longest log there is", replace(WHOLE, headers=(), head_op=OP_MAX)),
]


@pytest.mark.parametrize(("what", "malformed"), VOTES, ids=[what for what, _ in VOTES])
def test_a_malformed_vote_is_dropped(what: str, malformed: DoViewChangeMessage) -> None:
    """A vote that does not account once for each op is dropped by name, and elects nobody."""
    cluster = bootstrapped(3)
    message = replace(malformed, view=1, log_view=min(malformed.log_view, 1))

    (dropped,) = cluster.receive(ELECT, message)

    assert isinstance(dropped, Dropped)
    assert dropped.rule is DropRule.MALFORMED_LOG
    assert cluster.machines[ELECT].replica.status is ReplicaStatus.NORMAL


@pytest.mark.parametrize(
    "whole",
    [
        WHOLE,
        vote(FAULTY, LOG, commit=4),
        vote(FAULTY, LOG, commit=1, faulty=(2, 4)),
        vote(FAULTY, LOG, commit=1, faulty=(4,), uncertain=True),
        vote(FAULTY, [], commit=0, uncertain=True),
    ],
)
def test_a_whole_vote_counts(whole: DoViewChangeMessage) -> None:
    """Votes with damaged records, without entries or with an uncertain head are votes."""
    assert is_whole(whole)


def start_view(headers: tuple[PrepareHeader, ...], head_op: int = ENTRIES) -> StartViewMessage:
    """The log of view 1, from entry 2 on."""
    return StartViewMessage(CLUSTER_ID, ELECT, 1, bytes(BOOT_NONCE_BYTES), 1, head_op, headers)


LATER = tuple(LOG[1:])
START_VIEWS = [
    ("a hole", start_view((*LATER[:1], *LATER[2:]))),
    ("no head", start_view(LATER[:2])),
    ("out of order", start_view(LATER[::-1])),
    ("another parent", start_view((LATER[0], STRANGER, LATER[2]))),
    ("a committed entry", start_view(tuple(LOG))),
    ("the longest log there is", start_view((), OP_MAX)),
]


@pytest.mark.parametrize(("what", "malformed"), START_VIEWS, ids=[what for what, _ in START_VIEWS])
def test_a_malformed_log_is_dropped(what: str, malformed: StartViewMessage) -> None:
    """A backup adopts no log that has a gap or a broken chain."""
    cluster = bootstrapped(3)

    (dropped,) = cluster.receive(FAULTY, malformed)

    assert isinstance(dropped, Dropped), what
    assert dropped.rule is DropRule.MALFORMED_LOG
    assert is_whole(start_view(LATER))


def test_the_others_elect_while_one_votes_badly() -> None:
    """When the primary of five dies and one backup votes with holes, the rest elects."""
    cluster = bootstrapped(5)
    for _ in range(3):
        cluster.batch(0)
        cluster.pass_time(50)
    cluster.stop(0)
    bad = vote(FAULTY, LOG, commit=1)

    def arrives(to: int, message: object) -> bool:
        if isinstance(message, DoViewChangeMessage) and message.from_replica == FAULTY:
            holed = replace(bad, view=message.view, head_op=message.head_op + 1)
            cluster.receive(to, holed)
            return False
        return True

    cluster.pass_time(2_000, arrives)

    elected = cluster.machines[ELECT].replica
    assert (elected.status, elected.marks.view) == (ReplicaStatus.NORMAL, 1)
