"""A client at a cluster of builds that do not know all fields of its requests."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, Final

import pytest

import viewstamp
from tests.viewstamp.client.fake_gateway import PASSWORD, FakeGateway
from viewstamp.api.errors.v1.errors_pb2 import Reason
from viewstamp.api.snapshots.v1 import snapshots_service_pb2 as snapshots_pb2
from viewstamp.api.streams.v1 import streams_service_pb2 as streams_pb2
from viewstamp.client import Client

GUARDED: Final[dict[str, Callable[[Client], Awaitable[Any]]]] = {
    "a dry run": lambda client: client.snapshots.delete(1, validate_only=True),
    "an expected revision of 0": lambda client: client.tokens.delete("a", expected_revision=0),
    "one of several": lambda client: client.batch(
        [
            streams_pb2.CreateStreamRequest(name="orders"),
            snapshots_pb2.DeleteSnapshotRequest(generation=1, validate_only=True),
        ]
    ),
    "a part of a transaction": lambda client: client.transact(
        [snapshots_pb2.DeleteSnapshotRequest(generation=1, validate_only=True)]
    ),
    "a transaction": lambda client: client.transact(
        [streams_pb2.CreateStreamRequest(name="orders")], validate_only=True
    ),
}


@pytest.mark.parametrize("how", GUARDED)
async def test_what_a_build_would_ignore_is_not_sent(how: str) -> None:
    """A build before level 8 would carry out what was to be tried: the client does not ask it."""
    async with FakeGateway() as gateway:
        gateway.feature_level = 0
        async with await viewstamp.connect(
            gateway.address, username="root", password=PASSWORD
        ) as client:
            with pytest.raises(viewstamp.Refusal, match="upgrade the cluster first") as caught:
                await GUARDED[how](client)
            assert caught.value.reason == Reason.REASON_FEATURE_LEVEL_REQUIRED
            assert gateway.received == []
            # What every build knows goes there, also a dry run.
            await client.streams.create("orders", validate_only=True)
            assert len(gateway.received) == 1
