"""Batches that ended a process: what is undone there, and what ends with them."""

from __future__ import annotations

import asyncio
import threading
from types import SimpleNamespace
from typing import Any

import grpc.aio
import pytest

from services.runtime.isolation import ExhaustedError, Isolation
from services.runtime.queries import AnsweredQueries
from services.runtime.stream import ApplyStream
from viewstamp.api.domain.v1 import domain_service_pb2 as pb

WAIT_S = 30


@pytest.mark.parametrize(
    ("raised", "seen"), [(MemoryError, MemoryError), (RecursionError, ExhaustedError)]
)
def test_short_memory_is_no_defect(raised: type[Exception], seen: type[Exception]) -> None:
    """Memory may be short on one machine alone, so it ends the process, and is not answered; the
    stack is as deep on each."""

    def handler(state: Any, request: Any, call: Any) -> None:
        raise raised

    isolation = Isolation()
    isolation.begin_item()
    with pytest.raises(seen):
        isolation.guard("x/Y", handler)(None, None, SimpleNamespace(revision=1))
    assert isolation.has_helped == (seen is ExhaustedError)


class Context:
    """A coordinator that asks for a batch in isolation, and takes no answer but the first."""

    def __init__(self) -> None:
        """Have everything to ask for."""
        isolate = pb.Isolate(sequence=7, notes=True)
        self.requests = [
            pb.ApplyRequest(isolate=isolate),
            pb.ApplyRequest(batch=pb.Batch(sequence=7)),
        ]
        self.stuck = asyncio.Event()

    async def read(self) -> pb.ApplyRequest:
        """Return the next request."""
        return self.requests.pop(0)

    async def write(self, answer: pb.ApplyResponse) -> None:
        """Take the first answer, and no more."""
        if not answer.HasField("hello"):
            self.stuck.set()
            await asyncio.Event().wait()


class Noting:
    """A machine that announces each attempt, from its thread."""

    def __init__(self) -> None:
        """Have tried nothing."""
        self.ended = threading.Event()
        self.raised: BaseException | None = None
        self.alarms: list[Any] = []
        self.defers_digests = False

    def apply(self, batch: pb.Batch, patience: Any, isolation: Isolation) -> AnsweredQueries:
        """Try one handler, and keep its result."""
        isolation.begin_item()
        try:
            guarded = isolation.guard("x/Y", lambda *_: None)
            guarded(None, None, SimpleNamespace(revision=9))
        except BaseException as error:
            self.raised = error
            raise
        finally:
            self.ended.set()
        raise AssertionError("a handler was run of which nobody was told")


class Hearing:
    """A coordinator that acknowledges each attempt."""

    def __init__(self) -> None:
        """Ask for a batch in isolation, and send the next one at once."""
        self.arriving: asyncio.Queue[Any] = asyncio.Queue()
        self.written: list[pb.ApplyResponse] = []
        self.told = asyncio.Event()
        isolate = pb.Isolate(sequence=7, notes=True, confirms=True)
        self.arriving.put_nowait(pb.ApplyRequest(isolate=isolate))
        for sequence in (7, 8):
            self.arriving.put_nowait(pb.ApplyRequest(batch=pb.Batch(sequence=sequence)))

    async def read(self) -> Any:
        """Return the next message that was sent."""
        return await self.arriving.get()

    async def write(self, answer: pb.ApplyResponse) -> None:
        """Keep an answer."""
        self.written.append(answer)
        if answer.HasField("attempt"):
            self.told.set()

    async def until_all_is_read(self) -> None:
        """Wait until the service waits for more."""
        await asyncio.wait_for(self.told.wait(), WAIT_S)
        while not self.arriving.empty():  # noqa: ASYNC110 - another task empties it
            await asyncio.sleep(0)


class Trying:
    """A machine that announces what it has run."""

    def __init__(self) -> None:
        """Have run nothing."""
        self.ran: list[str] = []
        self.alarms: list[Any] = []
        self.defers_digests = False

    def apply(self, batch: pb.Batch, _: Any, isolation: Isolation | None = None) -> AnsweredQueries:
        """Run a handler if the batch is isolated, and answer."""
        if isolation is not None:
            isolation.begin_item()
            guarded = isolation.guard("x/Y", lambda *_: self.ran.append("handler"))
            guarded(None, None, SimpleNamespace(revision=9))
        self.ran.append(f"batch {batch.sequence}")
        return AnsweredQueries(pb.BatchReply(sequence=batch.sequence), [], [])


async def test_nothing_is_tried_before_it_was_heard() -> None:
    """An announcement that did not leave the process dies with it, and the handler before would
    be blamed; batches that came meanwhile are handled afterwards."""
    context, machine = Hearing(), Trying()
    anything: Any = machine
    stream = ApplyStream(anything, context, anything, lambda error: None)
    serving = asyncio.create_task(stream.serve())
    await context.until_all_is_read()
    assert machine.ran == []
    assert context.written[-1].attempt.awaits_heard
    context.arriving.put_nowait(pb.ApplyRequest(heard=pb.AttemptHeard()))
    context.arriving.put_nowait(grpc.aio.EOF)
    await asyncio.wait_for(serving, WAIT_S)
    assert machine.ran == ["handler", "batch 7", "batch 8"]
    assert [each.batch.sequence for each in context.written[-2:]] == [7, 8]


async def test_nothing_is_tried_if_nobody_hears() -> None:
    """If the coordinator disconnects before it has heard, the handler is not run."""
    context, machine = Hearing(), Trying()
    anything: Any = machine
    failures: list[Exception] = []
    stream = ApplyStream(anything, context, anything, failures.append)
    serving = asyncio.create_task(stream.serve())
    await context.until_all_is_read()
    for _ in range(2):  # gRPC says so each time it is asked
        context.arriving.put_nowait(grpc.aio.EOF)
    await asyncio.wait({serving}, timeout=WAIT_S)
    assert [type(failure) for failure in failures] == [ConnectionAbortedError]
    assert "handler" not in machine.ran


async def test_thread_ends_with_its_stream() -> None:
    """If the stream ends before the attempt is heard, the thread stops waiting and does not run
    the handler."""
    context, machine = Context(), Noting()
    anything: Any = machine
    stream = ApplyStream(anything, context, anything, lambda error: None)
    serving = asyncio.create_task(stream.serve())
    await asyncio.wait_for(context.stuck.wait(), WAIT_S)
    serving.cancel()
    await asyncio.wait({serving}, timeout=WAIT_S)
    assert await asyncio.to_thread(machine.ended.wait, WAIT_S)
    assert isinstance(machine.raised, OSError)


class Deaf:
    """A coordinator that dies before it has taken an answer to its batch."""

    def __init__(self) -> None:
        """Have one batch to ask for."""
        self.requests = [pb.ApplyRequest(batch=pb.Batch(sequence=7))]

    async def read(self) -> pb.ApplyRequest:
        """Return the batch, and then nothing."""
        if not self.requests:
            await asyncio.Event().wait()
        return self.requests.pop()

    async def write(self, answer: pb.ApplyResponse) -> None:
        """Take the greeting alone."""
        if not answer.HasField("hello"):
            raise grpc.aio.InternalError("the client is gone")


async def test_a_coordinator_that_dies_during_an_answer_ends_its_stream() -> None:
    """The stream ends as one that its caller has cancelled, and is no unexpected error."""
    anything: Any = Trying()
    stream = ApplyStream(anything, Deaf(), anything, lambda error: None)
    serving = asyncio.create_task(stream.serve())
    await asyncio.wait({serving}, timeout=WAIT_S)
    assert serving.cancelled()
