"""Requests and answers of the console, and the headers that every answer has."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from http import HTTPStatus
from types import MappingProxyType
from typing import Any, Final

JSON_TYPE: Final = "application/json"
EVENTS_TYPE: Final = "text/event-stream"
# Nothing from elsewhere, no script or style in the page itself, no frame around it.
CONTENT_POLICY: Final = "; ".join(
    (
        "default-src 'none'",
        "script-src 'self'",
        "style-src 'self'",
        "connect-src 'self'",
        "img-src 'self'",
        "base-uri 'none'",
        "form-action 'none'",
        "frame-ancestors 'none'",
        "require-trusted-types-for 'script'",
    )
)
SECURITY_HEADERS: Final[Mapping[str, str]] = MappingProxyType(
    {
        "Content-Security-Policy": CONTENT_POLICY,
        "Referrer-Policy": "no-referrer",
        "X-Content-Type-Options": "nosniff",
        "X-Frame-Options": "DENY",
        "Cross-Origin-Opener-Policy": "same-origin",
        "Cross-Origin-Resource-Policy": "same-origin",
        "Permissions-Policy": "camera=(), geolocation=(), microphone=()",
        "Cache-Control": "no-store",
    }
)


class HttpRefused(Exception):  # noqa: N818 - reads as the sentence it is
    """A request that is answered by a status and a reason; `headers` belong to the answer."""

    def __init__(
        self,
        status: HTTPStatus,
        message: str,
        reason: str = "",
        headers: Mapping[str, str] = MappingProxyType({}),
    ) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.reason = reason or status.name
        self.headers = headers


@dataclass(frozen=True, slots=True)
class HttpRequest:
    """A whole request. Header names are in lower case; of a repeated one `repeated` has the name.

    `peer` names the connection's other end as gRPC does.
    """

    method: str
    path: str
    query: Mapping[str, str]
    headers: Mapping[str, str]
    repeated: frozenset[str]
    body: bytes = field(repr=False)
    peer: str


@dataclass(frozen=True, slots=True)
class HttpAnswer:
    """A whole answer; `headers` stand beside those that every answer has."""

    status: HTTPStatus
    content_type: str
    body: bytes
    headers: Mapping[str, str] = field(default_factory=dict)


def json_text(value: Any) -> str:
    """Return a value as one line of JSON."""
    return json.dumps(value, ensure_ascii=True, separators=(",", ":"), allow_nan=False)


def json_answer(
    value: Any,
    status: HTTPStatus = HTTPStatus.OK,
    headers: Mapping[str, str] = MappingProxyType({}),
) -> HttpAnswer:
    """Return an answer that is JSON."""
    return HttpAnswer(status, JSON_TYPE, json_text(value).encode(), headers)


def refused_answer(refused: HttpRefused) -> HttpAnswer:
    """Return what tells a page, or a person with another program, why there is nothing else."""
    error = {"reason": refused.reason, "message": refused.message}
    return json_answer({"error": error}, refused.status, refused.headers)
