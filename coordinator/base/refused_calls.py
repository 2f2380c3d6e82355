"""Ends a refused gRPC call in the same way everywhere."""

from __future__ import annotations

from typing import Any, Final, NoReturn

import grpc.aio

from viewstamp.api.common.v1 import common_pb2
from viewstamp.errors import Refusal
from viewstamp.status import grpc_code, status_message, trailing_details

HEADER_KEY: Final = "viewstamp-header-bin"


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
    await context.abort(grpc_code(refusal), status_message(refusal), trailing_metadata=trailing)
    raise AssertionError("abort always raises")
