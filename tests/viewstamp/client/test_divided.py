"""What costs more than one command may is sent in parts, of neighbouring partitions."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import pytest

from viewstamp.api.errors.v1.errors_pb2 import Reason
from viewstamp.client.divided import in_parts
from viewstamp.errors import Refusal

COSTLY: Final = Refusal.of(Reason.REASON_COST_EXCEEDED, "command", cost=9, limit=5, scope="command")
BUSY: Final = Refusal.of(
    Reason.REASON_COST_EXCEEDED, "prepare", cost=9, limit=5, scope="prepare", retry_delay_ms=100
)
UNKNOWN: Final = Refusal.of(Reason.REASON_BROKER_NOT_FOUND, broker=1)


class NarrowCluster:
    """Takes so many partitions in one command, and says what it took."""

    def __init__(self, room: int, refusal: Refusal = COSTLY) -> None:
        self.room = room
        self.refusal = refusal
        self.taken: list[list[int]] = []

    async def send(self, part: Mapping[int, int]) -> int:
        """Take a part, and return its number."""
        if len(part) > self.room:
            raise self.refusal
        self.taken.append(list(part))
        return len(self.taken)


@pytest.mark.parametrize(
    ("count", "room", "taken"),
    [
        (0, 9, [[]]),
        (4, 4, [[0, 1, 2, 3]]),
        (4, 3, [[0, 1], [2, 3]]),
        (5, 2, [[0, 1], [2], [3, 4]]),
        (3, 1, [[0], [1], [2]]),
    ],
)
async def test_parts_have_neighbours_in_order(count: int, room: int, taken: list[Any]) -> None:
    """Every partition is sent once, ascending, and the last answer is returned."""
    cluster = NarrowCluster(room)
    descending = {number: 10 * number for number in reversed(range(count))}
    assert await in_parts(cluster.send, descending) == len(taken)
    assert cluster.taken == taken


@pytest.mark.parametrize(
    ("room", "refusal"), [(0, COSTLY), (1, BUSY), (1, UNKNOWN)], ids=["one", "busy", "unknown"]
)
async def test_what_parts_do_not_help_against_is_raised(room: int, refusal: Refusal) -> None:
    """One partition that costs too much, a busy log entry, and any other refusal are told."""
    cluster = NarrowCluster(room, refusal)
    with pytest.raises(Refusal) as caught:
        await in_parts(cluster.send, {1: 1, 2: 2})
    assert caught.value is refusal
    assert cluster.taken == []
