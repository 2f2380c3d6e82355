"""The first entry of a cluster is one entry, from the moment on at which anybody was told of it."""

from __future__ import annotations

from unittest.mock import MagicMock

import pytest

from coordinator.vsr.messages import PrepareMessage
from testkit.checkers.checker import Broken
from testkit.checkers.history import History
from testkit.checkers.log_checkers import OneLogPerView
from viewstamp.format.prepare import SealedPrepare, seal
from viewstamp.limits import CLUSTER_ID_BYTES

CLUSTER_ID = bytes(CLUSTER_ID_BYTES)


def founding(body: bytes, op: int = 1) -> SealedPrepare:
    """Return an entry of the first view, the first one by default."""
    return seal(
        parent=bytes(16) if op == 1 else b"p" * 16,
        cluster_id=CLUSTER_ID,
        view=0,
        op=op,
        commit=0,
        first_revision=1,
        command_count=1,
        feature_level=1,
        timestamp=1,
        body=body,
    )


@pytest.mark.parametrize("is_told", [False, True])
def test_a_founder_makes_another_first_entry_only_before_it_told_anybody(is_told: bool) -> None:
    """What was discarded unheard is nobody's promise; what was sent is one."""
    checker = OneLogPerView(History(3, lambda op: 0))
    first, second = founding(b"first"), founding(b"second")
    checker.durable(0, first, MagicMock())
    if is_told:
        checker.sent(0, PrepareMessage(CLUSTER_ID, 0, 0, first))
    checker.discarded(0, 0)

    broken = _broken(checker, second)

    assert (broken == "OneLogPerView") is is_told


def test_a_later_entry_is_one_entry_even_if_nobody_heard_of_it() -> None:
    """Only a replica without a superblock forgets its view, and it has no entry but the first."""
    checker = OneLogPerView(History(3, lambda op: 0))
    checker.durable(0, founding(b"first", op=2), MagicMock())
    checker.discarded(0, 0)
    assert _broken(checker, founding(b"second", op=2)) == "OneLogPerView"


def _broken(checker: OneLogPerView, prepare: SealedPrepare) -> str:
    """Return the checker that an entry breaks, empty if none."""
    try:
        checker.durable(0, prepare, MagicMock())
    except Broken as broken:
        return broken.checker
    return ""
