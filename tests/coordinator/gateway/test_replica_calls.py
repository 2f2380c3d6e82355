"""Calls that change the members: who may make them, when, and what they plan."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from coordinator.gateway.replica_calls import ADD_PATH, PROMOTE_PATH, REMOVE_PATH, ReplicaCalls
from coordinator.gateway.routes import Routes
from coordinator.mux.catalog_types import BeginEpoch
from coordinator.replica.epoch_planning import EpochView
from tests.coordinator.replica.test_epoch_planning import ids, view
from viewstamp.api.cluster.v1 import cluster_service_pb2 as cluster_pb2
from viewstamp.api.errors.v1.errors_pb2 import Reason
from viewstamp.errors import Refusal
from viewstamp.limits import FEATURE_LEVEL_EPOCHS

ADD = cluster_pb2.AddReplicaRequest(peer_address="new:7410")
PROMOTE = cluster_pb2.PromoteReplicaRequest(replica_id=3)
REMOVE = cluster_pb2.RemoveReplicaRequest(replica_id=1)


class PlannedEpochs:
    """Three voters and a standby; changes are remembered, and answered once `answers` is set."""

    def __init__(self) -> None:
        self.changes: list[BeginEpoch] = []
        self.answers = asyncio.Event()

    def view(self) -> EpochView:
        """Return the members."""
        return view((0, 1, 2), (3,))

    async def begin(self, change: BeginEpoch) -> Any:
        """Remember a change."""
        self.changes.append(change)
        await self.answers.wait()
        return f"reply {len(self.changes)}"


class NotedManager:
    """A caller who manages servers, or does not."""

    def __init__(self, may: bool = True) -> None:
        self.may = may
        self.newest: Any = "the read"

    async def check_manages_servers(self) -> None:
        """Refuse who may not."""
        if not self.may:
            raise Refusal(Reason.REASON_PERMISSION_DENIED, "no")


async def answered(epochs: PlannedEpochs, path: str, request: Any, **caller: Any) -> Any:
    """Call as a manager, and return the answer and what its header is made of."""
    epochs.answers.set()
    calls: Any = NotedManager(**caller)
    replica_calls = ReplicaCalls(Routes(lambda: FEATURE_LEVEL_EPOCHS), epochs)
    answer = await replica_calls.answers()[path](calls, request.SerializeToString())
    return answer, calls.newest


@pytest.mark.parametrize(
    ("path", "request_", "expected"),
    [
        (ADD_PATH, ADD, ((0, 1, 2), (3, 20), 0)),
        (PROMOTE_PATH, PROMOTE, ((0, 1, 2, 3), (), 0)),
        (REMOVE_PATH, REMOVE, ((0, 2), (3,), 0)),
    ],
)
async def test_each_call_ends_the_epoch_once(
    path: str, request_: Any, expected: tuple[tuple[int, ...], tuple[int, ...], int]
) -> None:
    """The answer's header is that of the entry that did it."""
    epochs = PlannedEpochs()
    answer, newest = await answered(epochs, path, request_)
    assert [ids(change) for change in epochs.changes] == [expected]
    assert newest == "reply 1"
    added = cluster_pb2.AddReplicaResponse.FromString(answer).replica_id
    assert added == (20 if path == ADD_PATH else 0)


@pytest.mark.parametrize(
    ("path", "request_"),
    [
        (ADD_PATH, cluster_pb2.AddReplicaRequest(peer_address="new:7410", validate_only=True)),
        (ADD_PATH, cluster_pb2.AddReplicaRequest(peer_address="host-3:7410")),
        (PROMOTE_PATH, cluster_pb2.PromoteReplicaRequest(replica_id=3, validate_only=True)),
        (PROMOTE_PATH, cluster_pb2.PromoteReplicaRequest(replica_id=2)),
        (REMOVE_PATH, cluster_pb2.RemoveReplicaRequest(replica_id=1, validate_only=True)),
        (REMOVE_PATH, cluster_pb2.RemoveReplicaRequest(replica_id=19)),
    ],
)
async def test_nothing_is_logged_for_a_trial_or_for_what_is_so_already(
    path: str, request_: Any
) -> None:
    """The answer is that of a call that has taken effect, at the revision that was read."""
    epochs = PlannedEpochs()
    assert (await answered(epochs, path, request_))[1] == "the read"
    assert epochs.changes == []


@pytest.mark.parametrize("path", [ADD_PATH, PROMOTE_PATH, REMOVE_PATH])
@pytest.mark.parametrize(
    ("level", "may", "reason"),
    [
        (FEATURE_LEVEL_EPOCHS - 1, True, Reason.REASON_FEATURE_LEVEL_REQUIRED),
        (FEATURE_LEVEL_EPOCHS, False, Reason.REASON_PERMISSION_DENIED),
    ],
)
async def test_managers_alone_and_from_a_level_on(
    path: str, level: int, may: bool, reason: Reason.ValueType
) -> None:
    """Below the level a build may run that could not read the entry."""
    epochs = PlannedEpochs()
    replica_calls = ReplicaCalls(Routes(lambda: level), epochs)
    calls: Any = NotedManager(may)
    with pytest.raises(Refusal) as refused:
        await replica_calls.answers()[path](calls, REMOVE.SerializeToString())
    assert (refused.value.reason, epochs.changes) == (reason, [])


async def test_one_change_at_a_time() -> None:
    """A second one is refused while the first is under way, and may come after it."""
    epochs = PlannedEpochs()
    answers = ReplicaCalls(Routes(lambda: FEATURE_LEVEL_EPOCHS), epochs).answers()
    calls: Any = NotedManager()
    first = asyncio.ensure_future(answers[PROMOTE_PATH](calls, PROMOTE.SerializeToString()))
    await asyncio.sleep(0)
    with pytest.raises(Refusal, match="another replica is being") as refused:
        await answers[REMOVE_PATH](calls, REMOVE.SerializeToString())
    assert refused.value.reason == Reason.REASON_OVERLOADED
    epochs.answers.set()
    await first
    await answers[REMOVE_PATH](calls, REMOVE.SerializeToString())
    assert len(epochs.changes) == 2
