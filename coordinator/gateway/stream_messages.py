"""Messages of a Submit stream, from their bytes and as they are sent."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, TypeAlias

import grpc.aio
from google.protobuf.message import DecodeError

from viewstamp.api.errors.v1.errors_pb2 import Reason
from viewstamp.api.submit.v1 import submit_service_pb2 as submit_pb2
from viewstamp.errors import Refusal

Context: TypeAlias = grpc.aio.ServicerContext[Any, Any]


async def next_request(context: Context) -> submit_pb2.SubmitRequest | None:
    """Return the next message, None after the last. Raises Refusal for malformed bytes."""
    data = await context.read()
    if data is grpc.aio.EOF:
        return None
    try:
        return submit_pb2.SubmitRequest.FromString(data)
    except DecodeError as error:
        raise Refusal(
            Reason.REASON_MALFORMED_REQUEST,
            "a message of the stream is malformed: send an encoded SubmitRequest",
        ) from error


def response_of(answers: Sequence[Any]) -> submit_pb2.SubmitResponse:
    """Return the message with one answer, or with several to commands."""
    if len(answers) > 1:
        return submit_pb2.SubmitResponse(commands=submit_pb2.CommandReplies(replies=answers))
    answer = answers[0]
    if isinstance(answer, submit_pb2.CommandReply):
        return submit_pb2.SubmitResponse(command=answer)
    return submit_pb2.SubmitResponse(read=answer)


def encoded_notice(group_ids: Iterable[int]) -> bytes:
    """Return the message that tells of changed places."""
    notice = submit_pb2.MembershipNotice(group_ids=sorted(group_ids))
    return submit_pb2.SubmitResponse(notice=notice).SerializeToString()
