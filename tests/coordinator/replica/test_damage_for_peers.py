"""Damage that a replica finds in its journal while it reads entries for others."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, NoReturn

import pytest

from coordinator import vsr
from coordinator.journal import CorruptRecord
from coordinator.replica.peer_answers import PeerAnswers, Position
from coordinator.replica.writer import HeldEntries, Reading
from coordinator.vsr.messages import CommittedMessage
from tests.coordinator.peers.peer_trial import CLUSTER, sealed

ASKER, DAMAGED = 1, 3


class DamagedEntries:
    """A journal whose record of one op is damaged."""

    async def read_held(self, op: int, checksum: bytes) -> NoReturn:
        """Find the damage."""
        raise CorruptRecord("segment", 0, op, "rotten")

    async def read_committed(self, first_op: int, last_op: int) -> Reading:
        """Return what is before it."""
        return HeldEntries((sealed(DAMAGED - 1),), DAMAGED)


@pytest.mark.parametrize(
    ("ask", "sent"),
    [
        (lambda answers: answers.send_held(vsr.SendHeld(ASKER, DAMAGED, b"k" * 16)), []),
        (
            lambda answers: answers.send_committed(vsr.SendCommitted(ASKER, 1, 9)),
            [(ASKER, CommittedMessage(CLUSTER, 0, sealed(DAMAGED - 1), 9))],
        ),
    ],
    ids=["one entry", "committed ones"],
)
async def test_what_is_found_damaged_is_told(
    ask: Callable[[PeerAnswers], None], sent: list[Any]
) -> None:
    """The core has it repaired; the others are sent what is intact."""
    found: list[int] = []
    told: list[tuple[int, vsr.Message]] = []
    async with asyncio.TaskGroup() as tasks:

        def start(work: Coroutine[Any, Any, None]) -> None:
            tasks.create_task(work)

        answers = PeerAnswers(
            CLUSTER,
            0,
            DamagedEntries(),
            lambda to, message: told.append((to, message)),
            lambda: Position(9, 0, 0),
            found.append,
            start,
        )
        ask(answers)
    assert (found, told) == ([DAMAGED], sent)
