"""Commands about snapshots go first and alone, and are admitted where others are not."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from coordinator import vsr
from coordinator.replica.batcher import (
    SNAPSHOT_CODES,
    SNAPSHOT_COMMANDS,
    SNAPSHOT_COMMANDS_WAITING_MAX,
    Batcher,
    LooseCommand,
)
from coordinator.replica.driver import Driver
from coordinator.replica.ports import DriverEvents, JournalRoom
from viewstamp.api.errors.v1.errors_pb2 import Reason
from viewstamp.errors import Refusal
from viewstamp.limits import FEATURE_LEVEL_BOUNDED, SYSTEM_USER_ID

CREATE_TOPIC = 210
DELETE_SNAPSHOT = 402
BEGIN_SNAPSHOT = 405


def loose(code: int) -> LooseCommand:
    """Return a command of a caller without a session, or of the replica itself."""
    user_id = SYSTEM_USER_ID if code == BEGIN_SNAPSHOT else 1
    return LooseCommand(code, b"", user_id, 1, "", asyncio.get_running_loop().create_future())


def test_every_snapshot_command_exists() -> None:
    """The names that travel alone are those of real methods."""
    assert len(SNAPSHOT_CODES) == len(SNAPSHOT_COMMANDS)


async def test_a_cut_overtakes_what_waits_and_shares_no_prepare() -> None:
    """Two cuts and a crowd make three prepares: each cut alone, first, and from the reserve."""
    batcher = Batcher()
    batcher.add(loose(CREATE_TOPIC))
    batcher.add(loose(BEGIN_SNAPSHOT))
    batcher.add(loose(CREATE_TOPIC))
    batcher.add(loose(BEGIN_SNAPSHOT))

    first, second = batcher.take_snapshot_command(), batcher.take_snapshot_command()

    assert batcher.take_snapshot_command() is None
    for batch in (first, second):
        assert batch is not None
        assert [span.code for span in batch.requests[0].spans] == [BEGIN_SNAPSHOT]
        assert batch.command_count == 1
        assert batch.may_use_reserve
    crowd = batcher.take()
    assert crowd is not None
    assert crowd.command_count == 2
    assert not crowd.may_use_reserve
    assert len(batcher) == 0


async def test_callers_keep_nobody_out_by_commands_about_snapshots() -> None:
    """One command of a caller goes before those who wait, then they go; the replica's own always
    may."""
    batcher = Batcher()
    for code in (DELETE_SNAPSHOT, DELETE_SNAPSHOT, CREATE_TOPIC):
        batcher.add(loose(code))
    assert batcher.take_snapshot_command() is not None
    assert batcher.take_snapshot_command() is None
    batcher.add(loose(BEGIN_SNAPSHOT))
    assert batcher.take_snapshot_command() is not None
    assert batcher.take_snapshot_command() is None
    assert batcher.take() is not None
    assert batcher.take_snapshot_command() is not None
    batcher.add(loose(DELETE_SNAPSHOT))
    assert batcher.take_snapshot_command() is not None, "nobody else waits"
    assert len(batcher) == 0


async def test_so_many_commands_about_snapshots_may_wait() -> None:
    """Too many callers are told to come again; the replica itself is not."""
    batcher = Batcher()
    for _ in range(SNAPSHOT_COMMANDS_WAITING_MAX):
        batcher.add(loose(DELETE_SNAPSHOT))
    with pytest.raises(Refusal, match="commands about snapshots are waiting already") as caught:
        batcher.add(loose(DELETE_SNAPSHOT))
    assert caught.value.reason == Reason.REASON_OVERLOADED
    batcher.add(loose(BEGIN_SNAPSHOT))
    batcher.refuse_all(Refusal(Reason.REASON_VIEW_CHANGE, "not now"))
    assert len(batcher) == 0


class OpenCore:
    """A core that admits everything and remembers it."""

    def __init__(self) -> None:
        self.unapplied_count = 0
        self.membership = vsr.Membership(0, (0,))
        self.admitted: list[bytes] = []

    def batch_refusal(self) -> None:
        """Never refuse."""

    def step(self, event: vsr.Event, now_ticks: int) -> list[vsr.Effect]:
        """Take a batch."""
        assert isinstance(event, vsr.ClientBatch)
        self.admitted.append(event.body)
        return []


@pytest.mark.parametrize(
    ("room", "admitted"),
    [
        (JournalRoom.FULL, {BEGIN_SNAPSHOT, DELETE_SNAPSHOT}),
        (JournalRoom.EXHAUSTED, {BEGIN_SNAPSHOT}),
    ],
)
async def test_a_full_disk_lets_only_snapshot_commands_in(
    room: JournalRoom, admitted: set[int]
) -> None:
    """A command that could free the disk is admitted; everything else is told NO_SPACE.

    Once part of the reserve is used, the rest is for the replica's own commands.
    """

    def ignore(*_: object) -> Any:
        return None

    events = DriverEvents(
        bootstrap_ready=ignore,
        status_changed=ignore,
        applied=ignore,
        cut_taken=ignore,
        catalog_changed=ignore,
        fatal=ignore,
        room=lambda: room,
        persisting=ignore,
        persisted=ignore,
        local_read=ignore,
        stage=ignore,
    )
    core: Any = OpenCore()
    mux: Any = SimpleNamespace(feature_level=FEATURE_LEVEL_BOUNDED)
    writer: Any = SimpleNamespace(read=ignore)
    driver = Driver(core, mux, writer, events)
    commands = {code: loose(code) for code in (CREATE_TOPIC, BEGIN_SNAPSHOT, DELETE_SNAPSHOT)}
    for command in commands.values():
        driver.intake.submit(command)
    driver.pump()

    assert len(core.admitted) == len(admitted)
    for code, command in commands.items():
        assert command.future.done() == (code not in admitted)
        if command.future.done():
            refusal = command.future.exception()
            assert isinstance(refusal, Refusal)
            assert refusal.reason == Reason.REASON_NO_SPACE
