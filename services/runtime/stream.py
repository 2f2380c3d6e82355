"""One Apply stream: an optional section, then batches in, replies out, in order.

Batches are applied on the event loop as they arrive. Replies wait in a bounded queue while the
transport writes, so that the next batch is applied meanwhile; a coordinator that does not read is
not read from. Answers of deferred reads join the same queue when their threads are done.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Coroutine, Iterable
from typing import Any, Final

import grpc

from services.runtime.answers import DeferredQuery
from services.runtime.digesting import DigestWalks
from services.runtime.failures import Alarm
from services.runtime.fair_threads import FairThreads
from services.runtime.install_stream import InstallRefused, InstallSteps
from services.runtime.isolation import Isolation, Place
from services.runtime.machine import Machine
from services.runtime.patience import SlicePatience
from services.runtime.queries import ENDLESS
from services.runtime.spans import join
from services.runtime.watch import ApplyWatch
from viewstamp.api.domain.v1 import domain_service_pb2 as pb
from viewstamp.api.errors.v1 import errors_pb2
from viewstamp.api.errors.v1.errors_pb2 import Reason
from viewstamp.errors import Refusal
from viewstamp.limits import APPLY_REPLIES_WAITING_MAX, DEFERRED_QUERIES_MAX, MIB
from viewstamp.machine.freezing import Frozen
from viewstamp.telemetry import fields

logger: Final = logging.getLogger(__name__)

# Answers to batches that came together share a message up to about this many bytes.
SHARED_ANSWERS_BYTES_MAX: Final = 1 * MIB
# ... and wait for each other about this long, since commands wait for the answers.
SHARED_ANSWERS_DELAY_MS: Final = 20

# grpc.aio.ServicerContext, whose generic parameters the generated stubs do not agree on.
Context = Any


class StreamEnded(Exception):  # noqa: N818 - the way a stream ends, not always a fault
    """The service ends the stream, with this status."""

    def __init__(self, code: grpc.StatusCode, message: str) -> None:
        super().__init__(message)
        self.code = code
        self.message = message


class ApplyStream:
    """Serves one stream until the coordinator closes it or `end` is called.

    `batches` counts the applied ones.
    """

    def __init__(
        self,
        machine: Machine[Any],
        context: Context,
        threads: FairThreads,
        on_failure: Callable[[Exception], None],
        watch: ApplyWatch | None = None,
    ) -> None:
        """Serve `machine`, which only this stream uses; `threads` compute deferred reads.

        `on_failure` is told what made the machine unusable; it must end this stream. `watch` is
        told of every batch.
        """
        self.machine = machine
        machine.defers_digests = True
        self.batches = 0
        self._context = context
        self._threads = threads
        self._on_failure = on_failure
        self._watch = watch
        self.replies: asyncio.Queue[pb.ApplyResponse | None] = asyncio.Queue(
            APPLY_REPLIES_WAITING_MAX
        )
        self._deferred: set[asyncio.Task[None]] = set()
        self._digests = DigestWalks(machine)
        self._work: asyncio.Task[None] | None = None
        self._installing: InstallSteps | None = None
        self._is_installed = False
        self._isolate: pb.Isolate | None = None  # how to handle the next batch
        self._is_isolating = False
        self._read_early: deque[pb.ApplyRequest] = deque()  # while something was tried
        self._is_over: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._ended: StreamEnded | None = None

    @property
    def is_installing(self) -> bool:
        """Whether there is no state to read: a section is awaited, or a thread has the machine."""
        return self._installing is not None or self._is_isolating

    async def serve(self) -> None:
        """Serve to the end. Raises StreamEnded if the service ended it."""
        self._work = asyncio.create_task(self._pump())
        try:
            await self._work
        except asyncio.CancelledError:
            if self._ended is None:
                raise  # the coordinator went away
        finally:
            self._is_over.set_result(None)
            self._digests.end()
        if self._ended is not None:
            raise self._ended

    def end(self, code: grpc.StatusCode, message: str) -> None:
        """Apply nothing more from now on, and close the stream with this status."""
        if self._ended is None:
            self._ended = StreamEnded(code, message)
        if self._work is not None:
            self._work.cancel()

    async def _pump(self) -> None:
        await self._context.write(pb.ApplyResponse(hello=pb.HelloReply()))
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self.write_replies())
            while (request := await self._read()) is not grpc.aio.EOF:
                await self.handle(request, tasks)
            await asyncio.gather(*self._deferred)
            await self.replies.put(None)

    async def handle(self, request: pb.ApplyRequest, tasks: asyncio.TaskGroup) -> None:
        """Do what one message of the coordinator asks for."""
        kind = request.WhichOneof("kind")
        if kind == "install" and not self.batches and not self._is_installed:
            await self._install(request.install)
        elif kind == "isolate" and self._installing is None:
            self._isolate = request.isolate
        elif kind == "batch" and self._isolate is not None:
            await self._apply_isolated(request.batch, self._isolate)
        elif kind == "batch" and self._installing is None:
            await self._answer(self._apply(request.batch, tasks))
        elif kind == "batches" and self._installing is None:
            await self._apply_all(request.batches.batches, tasks)
        elif kind == "release" and self._installing is None:
            released = self.machine.freezer.release(request.release.generation)
            if released is not None:
                tasks.create_task(_forget(released))
        else:
            self.end(grpc.StatusCode.INVALID_ARGUMENT, self._out_of_order(kind))

    def _out_of_order(self, kind: str | None) -> str:
        if self._installing is not None:
            return f"a section is being installed: activate it before a {kind} comes"
        if kind == "install":
            return "a section is installed before the first batch, once"
        return "after Hello every message holds a batch, a cut to release or a part of a section"

    async def _install(self, message: pb.Install) -> None:
        if self._installing is None:
            self._installing = InstallSteps(self.machine)
        try:
            answer = await self._installing.handle(message)
        except InstallRefused as refused:
            self.end(refused.code, refused.message)
            return
        except Exception as error:
            self._on_failure(error)
            return
        if answer is not None:
            await self.replies.put(pb.ApplyResponse(installed=answer))
        if self._installing.is_over:
            self._installing = None
            self._is_installed = True

    async def _apply_all(self, batches: Iterable[pb.Batch], tasks: asyncio.TaskGroup) -> None:
        """Apply batches that came together.

        Small answers go together, as long as none of them waits for long.
        """
        loop = asyncio.get_running_loop()
        replies, size, since_s = pb.BatchReplies(), 0, loop.time()
        for batch in batches:
            answers = self._apply(batch, tasks)
            if not answers:
                return
            is_late = (loop.time() - since_s) * 1000 > SHARED_ANSWERS_DELAY_MS
            size += answers[0].ByteSize()
            if len(answers) == 1 and size <= SHARED_ANSWERS_BYTES_MAX and not is_late:
                replies.replies.append(answers[0].batch)
                continue
            await self._answer_together(replies)
            await self._answer(answers)
            await asyncio.sleep(0)  # so that they are written before the next batch is applied
            replies, size, since_s = pb.BatchReplies(), 0, loop.time()
        await self._answer_together(replies)

    async def _apply_isolated(self, batch: pb.Batch, isolate: pb.Isolate) -> None:
        """Apply a batch that killed a process, after all others were answered."""
        self._isolate = None
        loop = asyncio.get_running_loop()

        def note(place: Place, where: str, revision: int) -> None:
            attempt = pb.Attempt(
                sequence=batch.sequence,
                item=place[0],
                call=place[1],
                where=where,
                revision=revision,
                awaits_heard=isolate.confirms,
            )
            told = self._tell_attempt(attempt)
            asyncio.run_coroutine_threadsafe(told, loop).result()

        given_up = frozenset((each.item, each.call) for each in isolate.given_up)
        isolation = Isolation(given_up, note if isolate.notes else None)
        logger.warning(
            "the service executes a batch in isolation", extra=fields(sequence=batch.sequence)
        )
        self._is_isolating = True
        try:
            await self.replies.join()
            # In a thread, so that the stack is equally deep on every replica.
            applied = await asyncio.to_thread(self.machine.apply, batch, ENDLESS, isolation)
        except Exception as error:
            self._on_failure(error)
            return
        finally:
            self._is_isolating = False
        self.batches += 1
        self.log_alarms()
        applied.reply.needs_isolation = isolation.has_helped
        await self._tell(pb.ApplyResponse(batch=applied.reply))

    async def _tell_attempt(self, attempt: pb.Attempt) -> None:
        """Report what a thread is about to run. Raises OSError if nobody listens any more.

        So the thread ends with the stream, without running it.
        """
        if not self._is_over.done():
            telling = asyncio.ensure_future(self._have_heard(attempt))
            await asyncio.wait({telling, self._is_over}, return_when=asyncio.FIRST_COMPLETED)
            if telling.done():
                return telling.result()
            telling.cancel()
        raise ConnectionAbortedError("the stream ended before it was told what is tried")

    async def _have_heard(self, attempt: pb.Attempt) -> None:
        """Return once the coordinator has the attempt. Raises OSError if it has gone away.

        Messages that it sent before are handled afterwards, in order.
        """
        await self._tell(pb.ApplyResponse(attempt=attempt))
        while attempt.awaits_heard:
            request = await self._context.read()
            if request is grpc.aio.EOF:
                raise ConnectionAbortedError("the stream ended before it was heard what is tried")
            if request.HasField("heard"):
                return
            self._read_early.append(request)

    async def _read(self) -> Any:
        return self._read_early.popleft() if self._read_early else await self._context.read()

    async def _tell(self, answer: pb.ApplyResponse) -> None:
        """Return once all messages, this one last, were handed to the transport."""
        await self.replies.put(answer)
        await self.replies.join()

    def _apply(self, batch: pb.Batch, tasks: asyncio.TaskGroup) -> list[pb.ApplyResponse]:
        """Apply a batch and return the answers that are ready; none if the machine failed."""
        begun_ns = 0 if self._watch is None else self._watch.begin(batch)
        patience = ENDLESS if batch.sequence else SlicePatience()
        try:
            applied = self.machine.apply(batch, patience)
        except Exception as error:
            self._on_failure(error)
            return []
        self.batches += 1
        self.log_alarms()
        if self._watch is not None:
            self._watch.end(batch, begun_ns)
        refused = [self._start(deferred, tasks) for deferred in applied.deferred]
        refused += [self._start_digest(query_id, tasks) for query_id in applied.digests]
        return [
            pb.ApplyResponse(batch=applied.reply),
            *(answer for answer in refused if answer is not None),
        ]

    async def _answer(self, answers: Iterable[pb.ApplyResponse]) -> None:
        for answer in answers:
            await self.replies.put(answer)

    async def _answer_together(self, replies: pb.BatchReplies) -> None:
        if replies.replies:
            await self.replies.put(pb.ApplyResponse(replies=replies))

    def _start(self, deferred: DeferredQuery, tasks: asyncio.TaskGroup) -> pb.ApplyResponse | None:
        """Start computing, or return a refusal if too much is being computed already."""
        if len(self._deferred) >= DEFERRED_QUERIES_MAX:
            return pb.ApplyResponse(deferred=deferred.refused(_overloaded()))
        self._follow(self._compute(deferred), tasks)
        return None

    def _start_digest(self, query_id: int, tasks: asyncio.TaskGroup) -> pb.ApplyResponse | None:
        """Start a walk over the present state, or return a refusal."""
        try:
            walk = self._digests.of_now()
        except Refusal as refusal:
            error = errors_pb2.IndexedError(index=0, error=refusal.to_error())
            outcome = pb.QueryOutcome(query_id=query_id, results=join([b""]), errors=[error])
            return pb.ApplyResponse(deferred=outcome)
        self._follow(self._tell_digest(query_id, walk), tasks)
        return None

    def _follow(self, work: Coroutine[Any, Any, None], tasks: asyncio.TaskGroup) -> None:
        task = tasks.create_task(work)
        self._deferred.add(task)
        task.add_done_callback(self._deferred.discard)

    async def _tell_digest(self, query_id: int, walk: asyncio.Task[bytes]) -> None:
        try:
            digest = await asyncio.shield(walk)
        except Exception as error:
            self._on_failure(error)
            return
        outcome = pb.QueryOutcome(query_id=query_id, state_digest=digest)
        await self.replies.put(pb.ApplyResponse(deferred=outcome))

    async def _compute(self, deferred: DeferredQuery) -> None:
        costly = deferred.costly
        share = None if costly is None else costly.share
        is_trusted = costly is not None and costly.is_trusted
        try:
            outcome = await self._threads.run(share, deferred.run, is_trusted=is_trusted)
        except Refusal as refusal:
            outcome = deferred.refused(refusal)
        except Exception as error:
            self._on_failure(error)
            return
        self.log_alarms()
        await self.replies.put(pb.ApplyResponse(deferred=outcome))

    async def write_replies(self) -> None:
        """Write the answers in their order, until None stands among them."""
        while (reply := await self.replies.get()) is not None:
            try:
                await self._context.write(reply)
            except grpc.aio.InternalError:
                if self._work is not None:
                    self._work.cancel()  # the coordinator went away
                return
            self.replies.task_done()

    def log_alarms(self) -> None:
        """Log the machine's defects, and forget them."""
        while self.machine.alarms:
            _log(self.machine.alarms.pop(0))


async def _forget(released: Frozen[Any]) -> None:
    """Free the rows of a cut that nobody needs, and let other tasks run meanwhile."""
    for _ in released.forget():
        await asyncio.sleep(0)


def _log(alarm: Alarm) -> None:
    logger.error(
        "the service has a defect: it undid the command and answered INTERNAL",
        exc_info=alarm.defect,
        extra=fields(where=alarm.where, revision=alarm.revision),
    )


def _overloaded() -> Refusal:
    return Refusal.of(Reason.REASON_OVERLOADED, "reads_computed", limit=DEFERRED_QUERIES_MAX)
