"""Effects of the mux on their way: carried out in their order, a slice at a time.

To carry one out can lead to the next commit, whose effects must wait their turn: batches of one
stage are sent in the order in which the mux made them. What the mux has taken its time for, such as
a batch of thousands of spans, leaves in a later turn of the loop.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence

from coordinator.mux import types as mux_types
from coordinator.slices import Slice


class MuxEffects:
    """What is to be carried out. What is raised there is raised in `guard`."""

    def __init__(
        self,
        carry_out: Callable[[mux_types.MuxEffect], None],
        guard: Callable[[Callable[[], None]], None],
    ) -> None:
        self._carry_out = carry_out
        self._guard = guard
        self._waiting: deque[mux_types.MuxEffect] = deque()
        self._is_under_way = False

    def lead(self, effects: Callable[[], Sequence[mux_types.MuxEffect]]) -> None:
        """Ask for effects, and carry them out behind those that wait."""
        own = Slice()
        self._waiting.extend(effects())
        if not self._is_under_way:
            self._is_under_way = True
            self._go_on(own)

    def forget_reads(self, stage: mux_types.Stage) -> None:
        """Send no batches that are not logged to a stage whose process is gone: nobody waits."""
        self._waiting = deque(
            effect
            for effect in self._waiting
            if not isinstance(effect, mux_types.SendBatch)
            or effect.batch.stage is not stage
            or effect.batch.sequence
        )

    def _go_on(self, own: Slice) -> None:
        while self._waiting:
            if own.is_over:
                asyncio.get_running_loop().call_soon(self._guard, self._begin_slice)
                return
            self._carry_out(self._waiting.popleft())
        self._is_under_way = False

    def _begin_slice(self) -> None:
        self._go_on(Slice())
