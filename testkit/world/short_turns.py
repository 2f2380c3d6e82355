"""Turns at the past so short, and rooms so small, that a few callers come to their ends.

Half of the runs with operators have them, and the others the product's own. A process of the past
takes longer there and is killed now and then; and a snapshot is soon too late for whoever waits.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from random import Random
from typing import Final
from unittest import mock

from coordinator.history import builder, turns
from coordinator.history.order import TurnOrder
from coordinator.history.turns import PastTurns
from coordinator.replica import writer
from testkit.world import past_states
from testkit.world.small_limits import SmallLimit
from viewstamp import limits
from viewstamp.limits import KIB

_IDLE_MS: Final = 300


def _forgetful_order(absence_s_max: float, _absent_max: int) -> TurnOrder:
    """Return an order that remembers one user who asks for nothing."""
    return TurnOrder(absence_s_max, 1)


LIMITS: Final = (
    SmallLimit(turns, "PAST_READS_WAITING_PER_USER_MAX", 2),
    SmallLimit(turns, "PAST_READS_WAITING_MAX", 3),
    SmallLimit(turns, "PAST_TURN_MS_MAX", 400),
    SmallLimit(turns, "TurnOrder", _forgetful_order),
    SmallLimit(PastTurns.__init__, "__defaults__", (_IDLE_MS,)),
    SmallLimit(builder, "BLAME_WALK_MS", 20),
    SmallLimit(writer, "REPAIR_BYTES_MAX", 2 * KIB),
    SmallLimit(past_states, "ANSWER_S", 0.01),
    SmallLimit(past_states, "LAST_ANSWER", 25),
    SmallLimit(limits, "READ_DEADLINE_MS", 10),
)


def has_short_turns(seed: int) -> bool:
    """Whether a run with operators has short turns."""
    return Random(f"short turns {seed}").randrange(2) == 0


@contextmanager
def short_turns(seed: int) -> Iterator[None]:
    """Have turns be short until the block ends, if the seed has them."""
    with ExitStack() as stack:
        for each in LIMITS if has_short_turns(seed) else ():
            stack.enter_context(mock.patch.object(each.owner, each.name, each.value))
        yield
