"""Answers as callers get them: headers in front, secrets at the end, errors as statuses."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NoReturn

import grpc.aio

from coordinator.replica.batcher import Reply, SpanReply
from viewstamp.api.common.v1 import common_pb2
from viewstamp.api.submit.v1 import submit_service_pb2 as submit_pb2
from viewstamp.errors import Refusal
from viewstamp.framing import decode_varint, frame
from viewstamp.status import grpc_code, trailing_details


def with_header(result: bytes, *, cluster_id: bytes, view: int, op: int, revision: int) -> bytes:
    """Return a response with its header: field 1 of every response message is the header."""
    header = common_pb2.ResponseHeader(cluster_id=cluster_id, view=view, op=op, revision=revision)
    # A frame is the encoding of a length-delimited field 1, which is just what a header is.
    return frame(header.SerializeToString()) + result


def only_result(span: SpanReply) -> bytes:
    """Return the result of a span of one command. Raises its Refusal."""
    if span.errors:
        raise Refusal.from_error(span.errors[0].error)
    _, start = decode_varint(span.results, 1)
    return span.results[start:]


def command_reply(
    number: int, reply: Reply, cluster_id: bytes, suffixes: Sequence[Mapping[int, bytes]]
) -> submit_pb2.SubmitResponse:
    """Return the answer to one CommandRequest; `suffixes` by span, then by index."""
    message = submit_pb2.CommandReply(number=number)
    message.header.cluster_id = cluster_id
    message.header.view = reply.view
    message.header.op = reply.op
    message.header.revision = reply.first_revision
    if reply.error is not None:
        message.error.CopyFrom(reply.error)
    _add_spans(message.spans, reply.spans, suffixes)
    return submit_pb2.SubmitResponse(command=message)


def refused_command(number: int, refusal: Refusal) -> submit_pb2.SubmitResponse:
    """Return the answer to a CommandRequest that was not sequenced."""
    return submit_pb2.SubmitResponse(
        command=submit_pb2.CommandReply(number=number, error=refusal.to_error())
    )


def read_reply(read_id: int, reply: Reply, cluster_id: bytes) -> submit_pb2.SubmitResponse:
    """Return the answer to one ReadRequest."""
    message = submit_pb2.ReadReply(read_id=read_id)
    message.header.cluster_id = cluster_id
    message.header.view = reply.view
    message.header.op = reply.op
    message.header.revision = reply.first_revision
    _add_spans(message.spans, reply.spans, ())
    return submit_pb2.SubmitResponse(read=message)


def refused_read(read_id: int, refusal: Refusal) -> submit_pb2.SubmitResponse:
    """Return the answer to a ReadRequest that was refused as a whole."""
    return submit_pb2.SubmitResponse(
        read=submit_pb2.ReadReply(read_id=read_id, error=refusal.to_error())
    )


def _add_spans(
    target: Any, spans: Sequence[SpanReply], suffixes: Sequence[Mapping[int, bytes]]
) -> None:
    for position, span in enumerate(spans):
        message = target.add(results=span.results, errors=span.errors)
        refused = {error.index for error in span.errors}
        for index, suffix in (suffixes[position] if position < len(suffixes) else {}).items():
            if index not in refused:  # a secret was derived, and names nothing
                message.suffixes.add(index=index, suffix=suffix)


async def abort(context: grpc.aio.ServicerContext[Any, Any], refusal: Refusal) -> NoReturn:
    """End the call with the refusal's status and its details."""
    await context.abort(
        grpc_code(refusal), refusal.message, trailing_metadata=(trailing_details(refusal),)
    )
    raise AssertionError("abort always raises")
