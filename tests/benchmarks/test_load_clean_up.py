"""The load's clean-up works even if its deletions together do not fit one log entry."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest

from benchmarks.load_target import delete_streams
from viewstamp import client as library
from viewstamp.api.errors.v1.errors_pb2 import Reason
from viewstamp.api.streams.v1 import streams_service_pb2 as streams_pb2

FITTING = 3


class LeavingClient:
    """Deletes the first few of each batch, and refuses the others with `details`."""

    def __init__(self, **details: object) -> None:
        """Delete nothing yet."""
        self.deleted: list[int] = []
        self._details = details

    async def batch(self, requests: Iterable[Any]) -> list[Any]:
        """Delete some."""
        ids = [request.stream.id for request in requests]
        self.deleted += ids[:FITTING]
        refusals = [
            library.Refusal(Reason.REASON_COST_EXCEEDED, "costs 4100 rows", **self._details)
            for _ in ids[FITTING:]
        ]
        return [streams_pb2.DeleteStreamResponse() for _ in ids[:FITTING]] + refusals


async def test_what_costs_too_much_together_is_sent_again() -> None:
    """Streams that do not fit into a request are deleted by later requests, each once."""
    client = LeavingClient(retry_delay_ms=1)
    await delete_streams(client, range(1, 9))  # type: ignore[arg-type]
    assert client.deleted == list(range(1, 9))


async def test_what_is_refused_for_good_fails_the_measurement() -> None:
    """A refusal without a time for a retry is raised."""
    with pytest.raises(library.Refusal, match="4100 rows"):
        await delete_streams(LeavingClient(), range(1, 9))  # type: ignore[arg-type]
