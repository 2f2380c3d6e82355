"""Answers as callers get them: headers in front, secrets at the end, errors as statuses."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final, NoReturn

import grpc.aio

from coordinator.replica.batcher import Reply, SpanReply
from viewstamp.api.common.v1 import common_pb2
from viewstamp.api.submit.v1 import submit_service_pb2 as submit_pb2
from viewstamp.errors import Refusal
from viewstamp.framing import decode_varint, frame
from viewstamp.status import grpc_code, trailing_details

HEADER_KEY: Final = "viewstamp-header-bin"


def header_of(reply: Reply, cluster_id: bytes) -> common_pb2.ResponseHeader:
    """Return where and when a reply was decided; `revision` is that of its first command."""
    return common_pb2.ResponseHeader(
        cluster_id=cluster_id, view=reply.view, op=reply.op, revision=reply.first_revision
    )


def with_header(header: common_pb2.ResponseHeader, result: bytes) -> bytes:
    """Return a response with its header: field 1 of every response message is the header."""
    # A frame is the encoding of a length-delimited field 1, which is just what a header is.
    return frame(header.SerializeToString()) + result


def only_result(reply: Reply) -> bytes:
    """Return the result of a request of one command. Raises its Refusal."""
    if reply.error is not None:
        raise Refusal.from_error(reply.error)
    span = reply.spans[0]
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
    return message


def refused_command(number: int, refusal: Refusal) -> submit_pb2.CommandReply:
    """Return the answer to a CommandRequest that was not sequenced."""
    return submit_pb2.CommandReply(number=number, error=refusal.to_error())


def read_reply(read_id: int, reply: Reply, cluster_id: bytes) -> submit_pb2.ReadReply:
    """Return the answer to one ReadRequest."""
    message = submit_pb2.ReadReply(read_id=read_id, header=header_of(reply, cluster_id))
    _add_spans(message.spans, reply.spans, ())
    return message


def refused_read(read_id: int, refusal: Refusal) -> submit_pb2.ReadReply:
    """Return the answer to a ReadRequest that was refused as a whole."""
    return submit_pb2.ReadReply(read_id=read_id, error=refusal.to_error())


def _add_spans(
    target: Any, spans: Sequence[SpanReply], suffixes: Sequence[Mapping[int, bytes]]
) -> None:
    for position, span in enumerate(spans):
        message = target.add(results=span.results, errors=span.errors)
        refused = {error.index for error in span.errors}
        for index, suffix in (suffixes[position] if position < len(suffixes) else {}).items():
            if index not in refused:  # a secret was derived, and names nothing
                message.suffixes.add(index=index, suffix=suffix)


async def abort(
    context: grpc.aio.ServicerContext[Any, Any],
    refusal: Refusal,
    header: common_pb2.ResponseHeader | None = None,
) -> NoReturn:
    """End the call with the refusal's status and its details; `header` tells where it was decided.

    It is None for refusals that no stage decided, which have no place in the log.
    """
    trailing: tuple[tuple[str, str | bytes], ...] = (trailing_details(refusal),)
    if header is not None:
        trailing = (*trailing, (HEADER_KEY, header.SerializeToString()))
    await context.abort(grpc_code(refusal), refusal.message, trailing_metadata=trailing)
    raise AssertionError("abort always raises")
