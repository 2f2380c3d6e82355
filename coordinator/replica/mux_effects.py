"""Carries out the effects of the mux in their order, a slice at a time.

An effect can lead to the next commit. The effects of that commit wait, because a stage must get its
batches in the order in which the mux made them. If the mux took long for a batch, such as one of
thousands of spans, the batch leaves in a later turn of the loop.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from typing import Final

from coordinator.base.slices import TimeSlice
from coordinator.mux import types as mux_types
from coordinator.mux.mux import Mux
from viewstamp.api.errors.v1.errors_pb2 import Reason
from viewstamp.errors import Refusal

# All effects of one prepare's apply up to its `Applied` are carried out in one turn of the loop:
# the orchestrator must never see a cut without the catalog that shows it.
_BEFORE_APPLIED: Final = (mux_types.CutTaken, mux_types.CatalogChanged)


class MuxEffects:
    """Feeds the mux and carries out its effects, all within `guard`."""

    def __init__(
        self,
        mux: Mux,
        carry_out: Callable[[mux_types.MuxEffect], None],
        guard: Callable[[Callable[[], None]], None],
    ) -> None:
        self._mux = mux
        self._carry_out = carry_out
        self._guard = guard
        self._waiting: deque[mux_types.MuxEffect] = deque()
        self._is_under_way = False

    def stage_replied(self, reply: mux_types.StageReply) -> None:
        """Take the answer of a stage."""
        self.lead(lambda: self._mux.reply(reply))

    def read_followed(self, outcome: mux_types.QueryOutcome) -> None:
        """Take the answer to a deferred read."""
        self.lead(lambda: self._mux.deferred(outcome))

    def stage_lost(self, stage: mux_types.Stage) -> None:
        """Fail the reads that a dead service will not answer."""
        refusal = Refusal(
            Reason.REASON_DOMAIN_RESTARTING,
            f"the service of stage {stage.name.lower()} is restarting: try again",
            stage=stage.name.lower(),
        )
        error = refusal.to_answer().SerializeToString()
        self._forget_reads(stage)
        self.lead(lambda: self._mux.fail_reads(stage, error))

    def ask_proposals(self, tenure: mux_types.Tenure | None = None) -> None:
        """Have every stage repeat its pending proposals, or tell what has been silent."""
        self.lead(lambda: self._mux.poke_proposals(tenure))

    def lead(self, effects: Callable[[], Sequence[mux_types.MuxEffect]]) -> None:
        """Ask for effects, and carry them out after those that wait."""
        self._guard(lambda: self._lead(effects))

    def _lead(self, effects: Callable[[], Sequence[mux_types.MuxEffect]]) -> None:
        own = TimeSlice()
        self._waiting.extend(effects())
        if not self._is_under_way:
            self._is_under_way = True
            self._go_on(own)

    def _forget_reads(self, stage: mux_types.Stage) -> None:
        """Drop unlogged batches to a stage whose process is gone: nobody waits for them."""
        self._waiting = deque(
            effect
            for effect in self._waiting
            if not isinstance(effect, mux_types.SendBatch)
            or effect.batch.stage is not stage
            or effect.batch.sequence
        )

    def _go_on(self, own: TimeSlice) -> None:
        while self._waiting:
            if own.is_over:
                asyncio.get_running_loop().call_soon(self._guard, self._begin_slice)
                return
            while isinstance(self._carry_out_next(), _BEFORE_APPLIED):
                pass
        self._is_under_way = False

    def _carry_out_next(self) -> mux_types.MuxEffect:
        effect = self._waiting.popleft()
        self._carry_out(effect)
        return effect

    def _begin_slice(self) -> None:
        self._go_on(TimeSlice())
