"""Requests of methods that the coordinator answers itself, decoded."""

from __future__ import annotations

from typing import TypeVar

from google.protobuf.message import DecodeError, Message

from viewstamp.api.errors.v1.errors_pb2 import Reason
from viewstamp.errors import Refusal

Decoded = TypeVar("Decoded", bound=Message)


def decoded_request(message: type[Decoded], payload: bytes) -> Decoded:
    """Return the request that a payload encodes. Raises Refusal MALFORMED_REQUEST."""
    try:
        return message.FromString(payload)
    except DecodeError as error:
        raise Refusal(
            Reason.REASON_MALFORMED_REQUEST,
            f"its bytes are not a {message.DESCRIPTOR.name}: send its protobuf encoding",
        ) from error
