"""Answers as callers get them: headers first, secrets last, errors as statuses."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from coordinator.replica.batcher import AnsweredSpan, Reply
from coordinator.replica.kept_errors import errors_weight
from viewstamp.api.common.v1 import common_pb2
from viewstamp.api.errors.v1.errors_pb2 import Reason
from viewstamp.api.submit.v1 import submit_service_pb2 as submit_pb2
from viewstamp.errors import Refusal, details_of
from viewstamp.framing import decode_varint, frame
from viewstamp.limits import KIB, MESSAGE_BYTES_MAX, REPLY_TEXTS_BYTES_MAX
from viewstamp.texts import render

# The largest answer, so that the message around it is not larger than clients take.
ANSWER_BYTES_MAX: Final = MESSAGE_BYTES_MAX - KIB
# What a text adds beside itself: tag, length, and longer lengths of the enclosing fields.
TEXT_OVERHEAD_BYTES: Final = 16
# The weight of a secret at the end of a waiting answer, roughly.
SUFFIX_BYTES: Final = 256


def header_of(reply: Reply, cluster_id: bytes) -> common_pb2.ResponseHeader:
    """Return where and when a reply was decided; `revision` is that of its first command."""
    return common_pb2.ResponseHeader(
        cluster_id=cluster_id, view=reply.view, op=reply.op, revision=reply.first_revision
    )


def with_header(header: common_pb2.ResponseHeader, result: bytes) -> bytes:
    """Return a response with its header: field 1 of every response message is the header."""
    # A frame is the encoding of a length-delimited field 1, which is exactly what a header is.
    return frame(header.SerializeToString()) + result


def only_result(reply: Reply) -> bytes:
    """Return the result of a request of one command. Raises its Refusal."""
    return result_of(reply, 0)


def result_of(reply: Reply, position: int) -> bytes:
    """Return the result of the only command or read of a span. Raises its Refusal."""
    if reply.error is not None:
        raise Refusal.from_error(reply.error)
    span = reply.spans[position]
    if span.errors:
        raise Refusal.from_error(span.errors[0].error)
    _, start = decode_varint(span.results, 1)
    return span.results[start:]


def command_reply(
    number: int, reply: Reply, cluster_id: bytes, suffixes: Sequence[Mapping[int, bytes]]
) -> submit_pb2.CommandReply:
    """Return the answer to one CommandRequest; `suffixes` by span, then by index."""
    message = submit_pb2.CommandReply(number=number, header=header_of(reply, cluster_id))
    if reply.error is not None:
        message.error.CopyFrom(reply.error)
    _add_spans(message.spans, reply.spans, suffixes)
    if reply.error is None and _is_plain(reply.spans):
        return message
    if is_too_large(message):
        # Logged before answers had a limit. Sent as it is, it would end every stream again.
        return submit_pb2.CommandReply(
            number=number, header=message.header, error=_too_large(message).to_answer()
        )
    _render(message)
    return message


def weight_of(reply: Reply, suffixes: Sequence[Mapping[int, bytes]] = ()) -> int:
    """Return the bytes that a reply keeps until it is written; `suffixes` are its secrets."""
    weight = SUFFIX_BYTES * sum(map(len, suffixes))
    for span in reply.spans:
        weight += len(span.results)
        if span.errors:
            weight += errors_weight(span.errors)
    return weight


def _is_plain(spans: Sequence[AnsweredSpan]) -> bool:
    """Return whether an answer is clearly not too large, and has no errors that need a text."""
    results_bytes = 0
    for span in spans:
        if span.errors:
            return False
        results_bytes += len(span.results)
    return results_bytes < ANSWER_BYTES_MAX // 2


def is_too_large(message: submit_pb2.CommandReply) -> bool:
    """Return whether an answer is larger than clients take."""
    return message.ByteSize() > ANSWER_BYTES_MAX


def _too_large(message: submit_pb2.CommandReply) -> Refusal:
    return Refusal.of(
        Reason.REASON_ANSWER_TOO_LARGE,
        "reply",
        bytes=message.ByteSize(),
        limit=ANSWER_BYTES_MAX,
        applied="true",
    )


def refused_command(number: int, refusal: Refusal) -> submit_pb2.CommandReply:
    """Return the answer to a CommandRequest that was not sequenced."""
    return submit_pb2.CommandReply(number=number, error=refusal.to_answer())


def read_reply(read_id: int, reply: Reply, cluster_id: bytes) -> submit_pb2.ReadReply:
    """Return the answer to one ReadRequest."""
    message = submit_pb2.ReadReply(read_id=read_id, header=header_of(reply, cluster_id))
    _add_spans(message.spans, reply.spans, ())
    if message.ByteSize() > ANSWER_BYTES_MAX:  # spans of several services, each within its share
        return refused_read(
            read_id,
            Refusal.of(Reason.REASON_COMMAND_TOO_LARGE, "answers", limit=ANSWER_BYTES_MAX),
        )
    _render(message)
    return message


def refused_read(read_id: int, refusal: Refusal) -> submit_pb2.ReadReply:
    """Return the answer to a ReadRequest that was refused as a whole."""
    return submit_pb2.ReadReply(read_id=read_id, error=refusal.to_answer())


def _add_spans(
    target: Any, spans: Sequence[AnsweredSpan], suffixes: Sequence[Mapping[int, bytes]]
) -> None:
    for position, span in enumerate(spans):
        message = target.add(results=span.results, errors=span.errors)
        if position < len(suffixes) and (secrets := suffixes[position]):
            refused = {error.index for error in message.errors}
            for index, suffix in secrets.items():
                if index not in refused:  # a secret was derived, but names nothing
                    message.suffixes.add(index=index, suffix=suffix)


def _render(message: submit_pb2.CommandReply | submit_pb2.ReadReply) -> None:
    """Give the errors of an answer their texts, as far as they fit; clients can make them too."""
    errors = [error.error for span in message.spans for error in span.errors]
    if message.HasField("error"):
        errors.insert(0, message.error)
    without_text = [error for error in errors if not error.message]
    if not without_text:
        return
    room_bytes = min(REPLY_TEXTS_BYTES_MAX, ANSWER_BYTES_MAX - message.ByteSize())
    for error in without_text:
        text = render(error.reason, error.case, details_of(error))
        room_bytes -= len(text.encode()) + TEXT_OVERHEAD_BYTES
        if room_bytes < 0:
            return
        error.message = text
