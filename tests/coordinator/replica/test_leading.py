"""The question whether this replica leads: who answers it, in time, and what is kept of it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

import pytest

from coordinator import vsr
from coordinator.gateway.leading import CONFIRM_DEADLINE_MS, Leading
from coordinator.mux import types as mux
from coordinator.mux.types import Stage
from coordinator.replica.ports import Progress
from coordinator.replica.reads import ReplicaReads
from viewstamp.api.errors.v1.errors_pb2 import Reason
from viewstamp.errors import Refusal
from viewstamp.limits import ABDICATE_MS

DEADLINE_MS = 20
# This is so long that only an answer ends it.
PATIENCE_MS = 3_600_000
NOT_PRIMARY = Refusal(Reason.REASON_NOT_PRIMARY, "replica 1 is the primary")


class LeadingTrial:
    """A replica that leads until the test says otherwise, and whose core answers on request."""

    def __init__(self, deadline_ms: int = PATIENCE_MS) -> None:
        """Lead."""
        self.progress = Progress(view=1)
        self.asked: list[vsr.Event] = []
        self.refusal: Refusal | None = None
        self.reads = ReplicaReads(self, self, self, self)
        self.leading = Leading(self.reads.confirm, self.check_serving, deadline_ms)

    def check_serving(self) -> None:
        """Raise the refusal that the test has set."""
        if self.refusal is not None:
            raise self.refusal

    def step(self, event: vsr.Event) -> None:
        """Take an event of the core."""
        self.asked.append(event)

    async def asking(self) -> asyncio.Task[None]:
        """Ask, and return once the core has the question."""
        task = asyncio.create_task(self.leading.confirm())
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert self.asked == [vsr.ReadIndexRequested(1)]
        return task

    def stages_of(self, read: object) -> tuple[Stage, ...]:
        """Never called: nothing is read here."""
        raise AssertionError

    def has_given(self, op: int, revision: int) -> bool:
        """Never called: nothing waits for the log here."""
        raise AssertionError

    def hurry(self) -> None:
        """Never called: nothing waits for the log here."""
        raise AssertionError

    def lead(self, effects: Callable[[], Sequence[mux.MuxEffect]]) -> None:
        """Never called: no read is led."""
        raise AssertionError

    def read(self, *reads: mux.Read) -> list[mux.MuxEffect]:
        """Never called: no read is led."""
        raise AssertionError

    def fail_read(self, token: int, error: bytes) -> list[mux.MuxEffect]:
        """Never called: no read is led."""
        raise AssertionError


async def test_an_index_says_that_it_leads() -> None:
    """The answer of a quorum is enough, and the core is told nothing more."""
    world = LeadingTrial()
    task = await world.asking()
    world.reads.granted(vsr.ReadIndexGranted(1, 5))
    await task
    assert world.asked == [vsr.ReadIndexRequested(1)]


async def test_no_answer_in_time() -> None:
    """A primary that was cut off sends its clients elsewhere, and keeps no question."""
    world = LeadingTrial(DEADLINE_MS)
    with pytest.raises(Refusal) as caught:
        await world.leading.confirm()
    assert caught.value.reason == Reason.REASON_VIEW_CHANGE
    assert caught.value.details == {"deadline_ms": str(DEADLINE_MS)}
    await asyncio.sleep(0)
    assert world.asked == [vsr.ReadIndexRequested(1), vsr.ReadIndexAbandoned(1)]
    world.reads.granted(vsr.ReadIndexGranted(1, 5))  # too late to matter


async def test_the_core_refuses() -> None:
    """A reason that prevents an index prevents the answer, too."""
    world = LeadingTrial()
    task = await world.asking()
    world.reads.refused(1, Refusal(Reason.REASON_OVERLOADED, "too many"))
    with pytest.raises(Refusal, match="too many"):
        await task
    assert world.asked == [vsr.ReadIndexRequested(1)]


async def test_a_backup_does_not_lead() -> None:
    """A backup does not even ask whether it leads."""
    world = LeadingTrial()
    world.refusal = NOT_PRIMARY
    task = asyncio.ensure_future(world.leading.confirm())
    await asyncio.sleep(0)
    assert world.asked == []
    with pytest.raises(Refusal, match="replica 1"):
        await task


async def test_an_index_for_a_backup_is_no_lead() -> None:
    """A replica that has become a backup meanwhile does not lead, even with an index."""
    world = LeadingTrial()
    task = await world.asking()
    world.refusal = NOT_PRIMARY
    world.reads.granted(vsr.ReadIndexGranted(1, 5))
    with pytest.raises(Refusal, match="replica 1"):
        await task


def test_clients_are_sent_elsewhere_before_it_notices_by_itself() -> None:
    """A client waits less than an old primary needs to notice that it was cut off."""
    assert CONFIRM_DEADLINE_MS < ABDICATE_MS
