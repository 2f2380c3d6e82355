"""When the batcher considers another prepare worth its cost."""

from __future__ import annotations

import asyncio

import pytest

from coordinator.replica.batcher import (
    GATHERED_BYTES,
    GATHERED_COMMANDS,
    Batcher,
    LooseCommand,
    SessionRequest,
)
from viewstamp.api.log.v1 import log_pb2
from viewstamp.limits import PREPARE_COMMANDS_MAX, UNAPPLIED_PREPARES_MAX


def loose(size: int = 1) -> LooseCommand:
    """Return a command of a caller without a session."""
    return LooseCommand(210, b"x" * size, 1, 1, "", asyncio.get_running_loop().create_future())


def request(commands: int) -> SessionRequest:
    """Return a session's request of that many commands."""
    logged = log_pb2.LoggedRequest(session_id=7, number=1)
    if commands:
        logged.spans.add(code=210, count=commands, items=b"\x0a\x00" * commands)
    return SessionRequest(logged, asyncio.get_running_loop().create_future())


async def test_lone_command_never_waits_for_company() -> None:
    """With nothing under way anything that waits is worth a prepare, even an acknowledgement."""
    for waiting in (loose(), request(1), request(0)):
        batcher = Batcher()
        batcher.add(waiting)
        assert batcher.is_worth_a_prepare(under_way=0)


@pytest.mark.parametrize(("under_way", "gathered"), [(1, 128), (2, 256), (3, 512), (4, 1_024)])
async def test_more_must_wait_the_more_is_under_way(under_way: int, gathered: int) -> None:
    """Single callers share a prepare: each further one under way demands twice as many."""
    batcher = Batcher()
    batcher.add(request(gathered - 1))
    assert not batcher.is_worth_a_prepare(under_way)
    batcher.add(loose())
    assert batcher.is_worth_a_prepare(under_way)
    assert not batcher.is_worth_a_prepare(under_way + 1)


async def test_full_prepare_is_always_worth_it() -> None:
    """A full prepare does not wait, however many are under way."""
    batcher = Batcher()
    batcher.add(request(PREPARE_COMMANDS_MAX))
    assert batcher.is_worth_a_prepare(under_way=UNAPPLIED_PREPARES_MAX)


async def test_packed_request_counts_as_its_commands() -> None:
    """A request of many commands does not wait for others."""
    batcher = Batcher()
    batcher.add(request(GATHERED_COMMANDS))
    assert batcher.is_worth_a_prepare(under_way=1)


async def test_large_commands_do_not_wait_to_be_many() -> None:
    """Enough bytes are worth a prepare, however few commands they are."""
    batcher = Batcher()
    batcher.add(loose(GATHERED_BYTES))
    assert batcher.is_worth_a_prepare(under_way=7)


async def test_what_was_taken_does_not_count() -> None:
    """After a prepare is taken the count begins anew with the remaining commands."""
    batcher = Batcher()
    for _ in range(GATHERED_COMMANDS):
        batcher.add(loose())
    assert batcher.take() is not None
    batcher.add(loose())
    assert not batcher.is_worth_a_prepare(under_way=1)
