"""Reads in a replica: their deadlines, and that abandoned reads leave nothing behind."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Callable, Sequence

import pytest

from coordinator import vsr
from coordinator.gateway.reads import LINEARIZABLE, ReadConsistency, ReadStarter
from coordinator.gateway.requested_reads import RequestedReads
from coordinator.gateway.routes import Routes
from coordinator.mux import types as mux
from coordinator.replica import read_shares
from coordinator.replica.batcher import Reply
from coordinator.replica.ports import Progress
from coordinator.replica.reads import ReplicaReads
from viewstamp.api.errors.v1.errors_pb2 import Reason
from viewstamp.api.submit.v1 import submit_service_pb2 as submit
from viewstamp.errors import Refusal
from viewstamp.limits import REQUEST_COMMANDS_MAX
from viewstamp.routing import Method
from viewstamp.tokens import AccessToken

DEADLINE_MS = 20
CODE = 450


class FakeMux:
    """Remembers the reads that it leads."""

    def __init__(self) -> None:
        """Lead none."""
        self.led: list[int] = []
        self.failed: list[int] = []

    def read(self, *reads: mux.Read) -> list[mux.MuxEffect]:
        """Remember the reads."""
        assert reads
        self.led += [read.token for read in reads]
        return []

    def stages_of(self, read: mux.Read) -> tuple[mux.Stage, ...]:
        """Send all the same way."""
        return (mux.Stage.STREAMS,)

    def fail_read(self, token: int, error: bytes) -> list[mux.MuxEffect]:
        """Remember the failure."""
        self.failed.append(token)
        return []


class AnsweringReplica:
    """A replica at revision 10 that grants read indexes on request."""

    def __init__(self) -> None:
        """Begin at revision 10."""
        self.progress = Progress(view=1)
        self.revision = 10
        self.asked: list[vsr.Event] = []
        self.hurried = 0

    def has_given(self, op: int, revision: int) -> bool:
        """Compare with the revision alone."""
        return revision <= self.revision

    def hurry(self) -> None:
        """Count."""
        self.hurried += 1

    def step(self, event: vsr.Event) -> None:
        """Remember the event."""
        self.asked.append(event)

    def lead(self, effects: Callable[[], Sequence[mux.MuxEffect]]) -> None:
        """Ask for the effects, of which the fake has none."""
        assert not effects()


class Setup:
    """The gateway's reads over the replica's."""

    def __init__(self) -> None:
        """Wire them."""
        self.replica, self.mux = AnsweringReplica(), FakeMux()
        self.reads = ReplicaReads(self.replica, self.replica, self.mux, self.replica)
        self.elsewhere: Refusal | None = None
        self.gateway = ReadStarter(Routes(), self, DEADLINE_MS)

    def read(
        self,
        spans: Sequence[RequestedReads],
        principal: AccessToken | None,
        session_id: int,
        consistency: ReadConsistency,
        address: str,
    ) -> asyncio.Future[Reply]:
        """Start reads as the composition does."""
        read = mux.Read(self.reads.next_token(), (), None, 0)
        return self.reads.start(
            read,
            linearizable=consistency.linearizable,
            revision=consistency.at_least_revision,
        )

    def read_together(
        self, method: Method, callers: tuple[mux.Caller, ...], items: bytes
    ) -> asyncio.Future[Reply]:
        """Start reads of several callers as the composition does."""
        read = mux.Read(self.reads.next_token(), (), None, 0, callers=callers)
        return self.reads.start(read, linearizable=True, revision=0)

    def late(self, deadline_ms: int) -> Refusal | None:
        """Return the primary's address, on a backup."""
        return self.elsewhere

    def start(self, consistency: ReadConsistency) -> asyncio.Future[Reply]:
        """Start one read at the gateway."""
        span = submit.Span(code=CODE, count=1, items=b"\x0a\x00")
        return self.gateway.start([span], AccessToken(0, 1, 0), 0, consistency)


CONSISTENCIES = {
    "asked": LINEARIZABLE,
    "waiting": ReadConsistency(False, 99),
    "led": ReadConsistency(False, 10),
}


@pytest.mark.parametrize("place", CONSISTENCIES)
async def test_deadline(place: str) -> None:
    """Every waiting read ends at its deadline with READ_DEADLINE, and leaves nothing."""
    setup = Setup()
    future = setup.start(CONSISTENCIES[place])
    with pytest.raises(Refusal) as caught:
        await future
    assert caught.value.reason == Reason.REASON_READ_DEADLINE
    assert caught.value.details == {"deadline_ms": str(DEADLINE_MS)}
    await _nothing_is_left(setup, place)


@pytest.mark.parametrize(
    ("place", "reason"),
    [("asked", Reason.REASON_NOT_PRIMARY), ("waiting", Reason.REASON_READ_DEADLINE)],
)
async def test_deadline_on_a_backup(place: str, reason: Reason.ValueType) -> None:
    """A linearizable read that a backup cannot answer in time goes to the primary."""
    setup = Setup()
    setup.elsewhere = Refusal(Reason.REASON_NOT_PRIMARY, "read there", address="[::1]:7400")
    with pytest.raises(Refusal) as caught:
        await setup.start(CONSISTENCIES[place])
    assert caught.value.reason == reason
    await _nothing_is_left(setup, place)


@pytest.mark.parametrize("place", CONSISTENCIES)
async def test_caller_that_leaves(place: str) -> None:
    """A caller that leaves a waiting read leaves nothing behind."""
    setup = Setup()
    future = setup.start(CONSISTENCIES[place])
    await asyncio.sleep(0)
    future.cancel()
    await _nothing_is_left(setup, place)


async def _nothing_is_left(setup: Setup, place: str) -> None:
    await asyncio.sleep(0)
    assert (len(setup.reads), setup.reads.waiting) == (0, 0)
    assert setup.mux.failed == ([1] if place == "led" else [])
    asked = [vsr.ReadIndexRequested(1), vsr.ReadIndexAbandoned(1)]
    assert setup.replica.asked == (asked if place == "asked" else [])
    # These come too late to matter: an index granted, a revision reached, an answer of the mux.
    setup.reads.granted(vsr.ReadIndexGranted(1, 5))
    setup.replica.revision = 100
    setup.reads.handed_over()
    setup.reads.answered(mux.ReadAnswered(1, 100, 100, (), None))
    await asyncio.sleep(0)
    assert setup.mux.led == ([1] if place == "led" else [])


async def test_caller_that_leaves_before_the_reads_are_led() -> None:
    """A due read is not sent after its caller left."""
    setup = Setup()
    setup.start(CONSISTENCIES["led"]).cancel()
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert (setup.mux.led, setup.mux.failed, len(setup.reads)) == ([], [], 0)


async def test_answers() -> None:
    """Answers and refusals reach their callers, and leave nothing."""
    setup = Setup()
    answered, refused = (setup.start(ReadConsistency(False, 0)) for _ in range(2))
    await asyncio.sleep(0)
    assert setup.mux.led == [1, 2]
    setup.reads.answered(mux.ReadAnswered(1, 10, 7, (), None))
    error = Refusal(Reason.REASON_DOMAIN_RESTARTING, "gone").to_answer().SerializeToString()
    setup.reads.answered(mux.ReadAnswered(2, 10, 7, (), error))
    assert (await answered).first_revision == 10
    with pytest.raises(Refusal, match="gone"):
        await refused
    assert len(setup.reads) == 0
    assert setup.mux.failed == []


async def test_the_core_keeps_reads_that_wait_for_it_alone() -> None:
    """The core forgets a read once it has granted or refused its index."""
    setup = Setup()
    granted, refused = setup.start(LINEARIZABLE), setup.start(LINEARIZABLE)
    setup.replica.asked.clear()
    setup.reads.granted(vsr.ReadIndexGranted(1, 5))
    setup.reads.refused(2, Refusal(Reason.REASON_OVERLOADED, "too many"))
    granted.cancel()
    with pytest.raises(Refusal, match="too many"):
        await refused
    await asyncio.sleep(0)
    assert (len(setup.reads), setup.replica.asked) == (0, [])


async def test_too_many_reads(monkeypatch: pytest.MonkeyPatch) -> None:
    """Reads beyond the limit are refused at once, whatever they wait for."""
    monkeypatch.setattr(read_shares, "READ_INDEXES_WAITING_MAX", 3)
    setup = Setup()
    futures = [setup.start(each) for each in CONSISTENCIES.values()]
    with pytest.raises(Refusal) as caught:
        setup.start(LINEARIZABLE)
    assert caught.value.reason == Reason.REASON_OVERLOADED
    for future in futures:
        future.cancel()
    gc.collect()


@pytest.mark.parametrize("counts", [[], [0], [1, 0], [REQUEST_COMMANDS_MAX, 1], [2**32 - 1]])
async def test_absurd_counts(counts: list[int]) -> None:
    """A span that claims no reads, or far too many, never reaches the replica."""
    setup = Setup()
    spans = [submit.Span(code=CODE, count=count) for count in counts]
    with pytest.raises(Refusal, match=r"at least one|at most 8190"):
        setup.gateway.start(spans, AccessToken(0, 1, 0), 0, LINEARIZABLE)
    assert not setup.replica.asked
