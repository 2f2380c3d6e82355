"""Answers to clients that may not read them: written in time, or the call is ended.

A client that reads nothing keeps its answers, its places and its session here. gRPC reports the end
of a call only behind everything written before, so such a client cannot be told: it is dropped.
"""

from __future__ import annotations

import asyncio
import logging
from typing import Any, Final

import grpc.aio
from google.protobuf.message import Message

from coordinator.base.refused_calls import abort
from viewstamp.api.errors.v1.errors_pb2 import Reason
from viewstamp.errors import Refusal

# To tell a client why its call ends.
ENDING_TIMEOUT_MS: Final = 1_000

Context = grpc.aio.ServicerContext[Any, Any]

_log = logging.getLogger(__name__)


async def write_in_time(context: Context, message: Message | bytes, timeout_ms: int) -> None:
    """Write a message. Raises Refusal QUOTA_EXCEEDED if nothing is read within `timeout_ms`."""
    try:
        async with asyncio.timeout(timeout_ms / 1000):
            await context.write(message)
    except TimeoutError as error:
        raise Refusal(
            Reason.REASON_QUOTA_EXCEEDED,
            f"the client read no answer for {timeout_ms} ms: read the answers as they arrive",
            share="unread_answers",
            timeout_ms=timeout_ms,
        ) from error


async def end_in_time(context: Context, refusal: Refusal) -> None:
    """End a call with the refusal's status, or silently if nobody reads."""
    try:
        async with asyncio.timeout(ENDING_TIMEOUT_MS / 1000):
            await abort(context, refusal)
    except TimeoutError:
        _log.info("a call was ended because its client reads no answers")
