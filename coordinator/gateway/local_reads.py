"""Common parts of the catalog stage's reads that this replica answers itself."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any, Protocol

from google.protobuf.message import DecodeError

from coordinator.mux import types as mux
from viewstamp.api.errors.v1.errors_pb2 import Reason
from viewstamp.errors import Refusal
from viewstamp.framing import FramingError, unframe
from viewstamp.routing import Method


class LocalReads(Protocol):
    """Answers the reads of some methods."""

    @property
    def codes(self) -> Collection[int]:
        """The methods."""
        ...

    def query(self, item: mux.QueryItem) -> mux.QueryOutcome:
        """Answer, or announce that the answer follows, at the position of the read."""
        ...


def parsed(
    item: mux.QueryItem, methods: Mapping[int, Method]
) -> tuple[dict[int, Any], tuple[mux.IndexedError, ...]]:
    """Return the requests by index, and the refusals of malformed ones.

    Neither includes indexes that were refused before.
    """
    requests: dict[int, Any] = {}
    errors: list[mux.IndexedError] = []
    refused = frozenset(item.refused)
    open_indexes = [index for index in range(item.count) if index not in refused]
    try:
        items = unframe(item.items)
        if len(items) != item.count:
            raise FramingError(f"the span claims {item.count} reads and holds {len(items)}")
    except FramingError as error:
        why = _malformed(str(error))
        return {}, tuple(mux.IndexedError(index, why) for index in open_indexes)
    for index in open_indexes:
        try:
            requests[index] = methods[item.code].request.FromString(items[index])
        except DecodeError:
            name = methods[item.code].request.DESCRIPTOR.full_name
            malformed = _malformed(f"its bytes are not a {name}: send its protobuf encoding")
            errors.append(mux.IndexedError(index, malformed))
    return requests, tuple(errors)


def _malformed(why: str) -> bytes:
    refusal = Refusal(Reason.REASON_MALFORMED_REQUEST, f"the request is malformed: {why}")
    return refusal.to_answer().SerializeToString()
