"""Reads at an earlier revision: who may make them, decided today, and their answers.

One linearizable read of the present finds whether the caller's credentials are in force, and when
the caller's access changed last. What was before is not given out, since the access of that time is
not known any more; root is an exception, because it was always allowed everything. So at the
revision that is read the caller had the access of today, and the state of then decides about each
call as it did then. A watch has the same rule (`watch_openings`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from coordinator.gateway.change_pages import ChangeReads, changes_span, page_of
from coordinator.gateway.replies import result_of
from coordinator.gateway.routes import Routes
from coordinator.history.builder import PastBuilder
from coordinator.history.messages import AskState
from coordinator.history.turns import IsWanted, PastQuestion, PastTurns
from coordinator.mux import types as mux
from coordinator.replica.answers import span_reply
from coordinator.replica.batcher import Reply
from viewstamp.api.domain.v1 import domain_service_pb2 as domain_pb2
from viewstamp.api.errors.v1 import errors_pb2
from viewstamp.api.errors.v1.errors_pb2 import Reason
from viewstamp.api.streams.v1 import streams_service_pb2 as streams_api
from viewstamp.errors import Refusal
from viewstamp.framing import frame
from viewstamp.limits import READ_DEADLINE_MS, ROOT_USER_ID
from viewstamp.routing import Method

# A read that any caller may try; only whether it knows the caller is looked at.
_KNOWS_CALLER: Final = "/viewstamp.api.streams.v1.StreamsService/ListStreams"


@dataclass(frozen=True, slots=True)
class PastPorts:
    """What reads of the past ask. `watched` are the types that the services show, by stage."""

    routes: Routes
    reads: ChangeReads
    turns: PastTurns
    watched: Callable[[], Mapping[mux.Stage, Collection[str]]]


class PastReads:
    """Starts reads at earlier revisions."""

    def __init__(self, ports: PastPorts) -> None:
        self._ports = ports

    def start(
        self, read: mux.Read, methods: Sequence[Method], revision: int
    ) -> asyncio.Future[Reply]:
        """Start a read of some methods; the future may fail with Refusal, and cancelling it ends
        the work. Raises Refusal for methods that know the present alone."""
        for method in methods:
            _check_has_past(method)
        loop = asyncio.get_running_loop()
        future: asyncio.Future[Reply] = loop.create_future()
        task = loop.create_task(self._answer(future, read, revision))
        future.add_done_callback(lambda _: task.cancel())
        return future

    async def _answer(self, future: asyncio.Future[Reply], read: mux.Read, revision: int) -> None:
        try:
            reply = await self._answered(read, revision)
        except Exception as error:
            if not future.done():
                future.set_exception(error)
            return
        if not future.done():
            future.set_result(reply)

    async def _answered(self, read: mux.Read, revision: int) -> Reply:
        now = await self.check_access(read.user_id or 0, read.credential_revision, revision)

        async def ask(builder: PastBuilder, _: IsWanted) -> Reply:
            answered = await builder.ask(AskState(read))
            assert isinstance(answered, mux.ReadAnswered), "a read is answered by what was read"
            return _reply(now.view, answered)

        question = PastQuestion(read.user_id or 0, revision, now.op, ask)
        reply: Reply = await self._ports.turns.ask(question)
        return reply

    async def check_access(self, user_id: int, credential_revision: int, revision: int) -> Reply:
        """Return where this was decided, not before the revision. Raises Refusal, for example
        REVISION_COMPACTED for a revision that this caller may not read."""
        self._check_keeps_changes()
        now = await self._asked(user_id, credential_revision, revision)
        try:
            result_of(now, 0)
        except Refusal as refusal:
            if refusal.reason == Reason.REASON_UNAUTHENTICATED:
                raise
        page = page_of(now, 1)
        oldest = max(page.access_revision, page.oldest_revision - 1)
        if user_id != ROOT_USER_ID and revision < oldest:
            raise Refusal(
                Reason.REASON_REVISION_COMPACTED,
                f"revision {revision} is from before a change of what you may do, or from where that"
                f" is not known any more: {oldest} is the oldest one that you may read; root may"
                " read earlier ones",
                revision=revision,
                oldest=oldest,
            )
        return now

    def _check_keeps_changes(self) -> None:
        if not self._ports.watched().get(mux.Stage.STREAMS):
            raise Refusal(
                Reason.REASON_UNIMPLEMENTED,
                "the service of streams does not tell when access changes: upgrade it",
            )

    async def _asked(self, user_id: int, credential_revision: int, revision: int) -> Reply:
        ports = self._ports
        listed = frame(streams_api.ListStreamsRequest(page_size=1).SerializeToString())
        access = domain_pb2.ChangesRequest(user_id=user_id)
        read = mux.Read(
            ports.reads.next_token(),
            (
                mux.ReadSpan(ports.routes.public(_KNOWS_CALLER).code, 1, listed),
                changes_span(mux.Stage.STREAMS, access),
            ),
            user_id,
            credential_revision,
        )
        try:
            async with asyncio.timeout(READ_DEADLINE_MS / 1000):
                return await ports.reads.start(read, linearizable=True, revision=revision)
        except TimeoutError as error:
            raise Refusal(
                Reason.REASON_READ_DEADLINE,
                f"the cluster did not come to revision {revision}, or confirm it, within"
                f" {READ_DEADLINE_MS} ms: read at a revision that the cluster has reached",
                deadline_ms=READ_DEADLINE_MS,
            ) from error


def _reply(view: int, answered: mux.ReadAnswered) -> Reply:
    """Return an answer in the shell's form. Raises the Refusal of the read."""
    if answered.error is not None:
        raise Refusal.from_error(errors_pb2.Error.FromString(answered.error))
    spans = tuple(span_reply(span) for span in answered.spans)
    return Reply(view, answered.op, answered.revision, spans)


def _check_has_past(method: Method) -> None:
    """Raise Refusal for reads that are about the present, or give something to their caller."""
    is_kept = mux.Stage(method.owner) in mux.SERVICE_STAGES
    if method.public or method.at_primary or not is_kept:
        raise Refusal(
            Reason.REASON_MALFORMED_REQUEST,
            f"{method.full_name} knows the present alone: leave the revision out",
            method=method.full_name,
        )
