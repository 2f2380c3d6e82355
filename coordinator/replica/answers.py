"""Answers of the mux for those who wait: one reply per request, one per loose command."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence

from coordinator.mux import types as mux_types
from coordinator.replica.batcher import AnsweredSpan, LooseCommand, PrepareBatch, Reply
from coordinator.replica.kept_errors import KeptErrors
from viewstamp.api.errors.v1 import errors_pb2
from viewstamp.api.errors.v1.errors_pb2 import Reason
from viewstamp.errors import Refusal
from viewstamp.framing import frame, unframe


def fail(batch: PrepareBatch, refusal: Refusal) -> None:
    """Fail every waiter of a batch that did not get into the log."""
    for waiter in batch.waiters:
        for future in (
            [waiter] if isinstance(waiter, asyncio.Future) else [w.future for w in waiter]
        ):
            if not future.done():
                future.set_exception(refusal)


def no_space() -> Refusal:
    """Return the refusal of ordinary commands while the disk is full."""
    return Refusal(
        Reason.REASON_NO_SPACE,
        "the journal's disk is full: the cluster is read-only until space returns",
    )


def answer(batch: PrepareBatch, replies: Sequence[mux_types.RequestReply]) -> None:
    """Give each waiter of an applied batch its reply: one per request, in order."""
    for waiter, reply in zip(batch.waiters, replies, strict=True):
        if isinstance(waiter, asyncio.Future):
            if not waiter.done():
                waiter.set_result(request_reply(reply))
        else:
            _answer_loose(waiter, request_reply(reply))


def request_reply(reply: mux_types.RequestReply) -> Reply:
    """Return the mux's reply in the shell's form."""
    error = None if reply.error is None else errors_pb2.Error.FromString(reply.error)
    spans = tuple(span_reply(span) for span in reply.spans)
    return Reply(reply.view, reply.op, reply.first_revision, spans, error)


def span_reply(span: mux_types.SpanReply) -> AnsweredSpan:
    """Return the mux's reply to one span in the shell's form."""
    errors = KeptErrors(span.errors) if span.errors else ()
    results = frame(span.state_digest) if span.state_digest else span.results
    return AnsweredSpan(results, errors)


def _answer_loose(commands: Sequence[LooseCommand], reply: Reply) -> None:
    for revision, (command, result) in enumerate(
        zip(commands, _single_results(reply, len(commands)), strict=True), reply.first_revision
    ):
        if not command.future.done():
            command.future.set_result(Reply(reply.view, reply.op, revision, (result,), reply.error))


def _single_results(reply: Reply, count: int) -> Iterator[AnsweredSpan]:
    if reply.error is not None:
        yield from [AnsweredSpan(b"", ())] * count
    for span in reply.spans:
        errors = {error.index: error for error in span.errors}
        for index, result in enumerate(unframe(span.results)):
            error = errors.get(index)
            yield AnsweredSpan(frame(result), () if error is None else (error,))
