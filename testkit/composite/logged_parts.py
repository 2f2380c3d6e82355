"""Requests as the log has them, put together from plain values."""

from __future__ import annotations

from typing import Any

from testkit.composite.model import CODES, METHODS
from viewstamp.api.log.v1 import log_pb2
from viewstamp.framing import frame_all


def logged_request(
    session_id: int, number: int, acked: int, spans: list[log_pb2.LoggedSpan]
) -> log_pb2.LoggedRequest:
    """Return a request of a session, or of none."""
    return log_pb2.LoggedRequest(session_id=session_id, number=number, acked=acked, spans=spans)


def logged_span(code: int, items: list[bytes], user_id: int, stamp: int) -> log_pb2.LoggedSpan:
    """Return commands of one code and one caller."""
    return log_pb2.LoggedSpan(
        code=code,
        count=len(items),
        items=frame_all(items),
        user_id=user_id,
        credential_revision=stamp,
    )


def encoded_request(name: str, fields: dict[str, Any]) -> bytes:
    """Return the request of one command."""
    request = METHODS[CODES[name]].request(**fields)
    return request.SerializeToString(deterministic=True)
