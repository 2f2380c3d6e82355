"""A client at a cluster of builds that do not know all fields of its requests."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, Final

import pytest

import viewstamp
from tests.viewstamp.client.fake_gateway import PASSWORD, FakeGateway
from viewstamp.api.cluster.v1 import cluster_service_pb2 as cluster_pb2
from viewstamp.api.errors.v1.errors_pb2 import Reason
from viewstamp.api.snapshots.v1 import snapshots_service_pb2 as snapshots_pb2
from viewstamp.api.streams.v1 import streams_service_pb2 as streams_pb2
from viewstamp.client import Client
from viewstamp.limits import FEATURE_LEVEL_GUARDS

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


@pytest.mark.parametrize("is_known", [False, True])
async def test_a_trial_of_step_down_needs_a_level(is_known: bool) -> None:
    """An older primary would step down when this is only tried, so the level is asked for first."""
    async with FakeGateway() as gateway:
        gateway.domain.feature_level = FEATURE_LEVEL_GUARDS - (not is_known)
        async with await viewstamp.connect(
            gateway.address, username="root", password=PASSWORD
        ) as client:
            if is_known:
                await client.step_down(validate_only=True)
                assert gateway.domain.requests == [cluster_pb2.StepDownRequest(validate_only=True)]
            else:
                with pytest.raises(viewstamp.Refusal, match="7 is in force"):
                    # There the client has no status: it is about the present alone.
                    await client.at(1).step_down(validate_only=True)
                assert gateway.domain.requests == []
                await client.step_down()
