"""The requests of a log entry, as the mux takes them."""

from __future__ import annotations

from coordinator.base.slices import at_once
from coordinator.mux.types import LoggedRequest
from coordinator.stages.codec import logged_requests, requests_of


def decode_requests(body: bytes) -> tuple[LoggedRequest, ...]:
    """Return the requests of a prepare's body. Raises DecodeError: the body was never ours."""
    return at_once(logged_requests(requests_of(body)))
