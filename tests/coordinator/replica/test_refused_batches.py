"""Batches that the core or the log refuses as a whole, and refusals as they are kept."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from coordinator import vsr
from coordinator.mux.types import IndexedError, RequestReply
from coordinator.replica.answers import answer
from coordinator.replica.batcher import LooseCommand, PrepareBatch
from coordinator.replica.intake import Intake
from coordinator.replica.kept_errors import KeptErrors
from coordinator.replica.ports import JournalRoom
from viewstamp.api.errors.v1 import errors_pb2
from viewstamp.api.errors.v1.errors_pb2 import Reason
from viewstamp.errors import Refusal

ERROR = errors_pb2.Error(reason=Reason.REASON_REQUEST_TOO_OLD)


def loose() -> LooseCommand:
    """Return a command of a caller without a session."""
    return LooseCommand(210, b"x", 1, 1, "", asyncio.get_running_loop().create_future())


async def test_each_caller_of_a_refused_request_is_told_why() -> None:
    """Commands without a session share a request; what the log says of it is said to all."""
    commands = [loose(), loose()]
    batch = PrepareBatch(b"", 2, [], [commands])
    answer(batch, [RequestReply(0, 0, 3, 7, 9, (), ERROR.SerializeToString())])
    replies = [each.future.result() for each in commands]
    assert [reply.error for reply in replies] == [ERROR, ERROR]
    assert [reply.first_revision for reply in replies] == [9, 10]


def test_a_part_of_kept_refusals_is_kept_alike() -> None:
    """A slice decodes nothing."""
    errors = tuple(IndexedError(index, ERROR.SerializeToString()) for index in range(3))
    part = KeptErrors(errors)[1:]
    assert isinstance(part, KeptErrors)
    assert [each.index for each in part] == [1, 2]


async def test_a_batch_that_the_core_does_not_take_fails() -> None:
    """The core is asked before, so it refuses none; a caller would be told."""
    core: Any = SimpleNamespace(unapplied_count=0, batch_refusal=lambda: None)
    refusal = Refusal(Reason.REASON_NOT_PRIMARY, "not here")
    serving: Any = SimpleNamespace(refusal_of=lambda reason: refusal)
    replica: Any = SimpleNamespace(guard=lambda action: action())
    machines: Any = SimpleNamespace(feature_level=1)
    intake = Intake(core, replica, serving, machines, lambda: JournalRoom.FREE, lambda: 0)
    replica.step = lambda event: intake.refused(vsr.RefusalReason.PIPELINE_FULL)
    command = loose()
    intake.submit(command)
    with pytest.raises(Refusal, match="not here"):
        await command.future
