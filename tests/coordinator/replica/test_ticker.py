"""The timer of a replica ticks on time; after a hold-up it first lets waiting messages in."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from coordinator.replica import ticker as ticker_module
from coordinator.replica.ticker import Ticker

DUE_TICKS = 25
# This is far beyond what counts as late.
HELD_UP_S = 10.0


class HeldUp(asyncio.SelectorEventLoop):
    """An event loop whose clock can show a hold-up."""

    held_up_s = 0.0

    def time(self) -> float:
        """Return the time, with the hold-up added."""
        return super().time() + self.held_up_s


def on_held_up_loop(test: Callable[[HeldUp], Awaitable[None]]) -> None:
    """Run a test on such a loop."""
    loop = HeldUp()
    with asyncio.Runner(loop_factory=lambda: loop) as runner:

        async def whole() -> None:
            await test(loop)

        runner.run(whole())


@pytest.fixture(autouse=True)
def _stopped_ticks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ticker_module, "now_ticks", lambda: 0)


async def turns(count: int) -> None:
    """Let the loop turn so often."""
    for _ in range(count):
        await asyncio.sleep(0)


@pytest.mark.parametrize("is_backup", [True, False])
def test_a_backup_that_was_held_up_hears_first(is_backup: bool) -> None:
    """A late tick waits for messages on a backup, and for nothing on a primary."""

    async def test(loop: HeldUp) -> None:
        told: list[str] = []
        ticker = Ticker(lambda: told.append("tick"), hears_first=lambda: is_backup)
        ticker.arm(DUE_TICKS)
        loop.held_up_s += HELD_UP_S
        await turns(10)
        assert told == ([] if is_backup else ["tick"])
        ticker.arm(DUE_TICKS)  # by a message: the primary lives
        told.clear()
        loop.held_up_s += (ticker_module.HEARING_MS + 1) / 1000
        await turns(10)
        assert told == []

    on_held_up_loop(test)


def test_a_backup_ticks_though_it_is_held_up_again() -> None:
    """A tick waits only once, so a process that is always late ticks, too."""

    async def test(loop: HeldUp) -> None:
        told: list[str] = []
        ticker = Ticker(lambda: told.append("tick"), hears_first=lambda: True)
        ticker.arm(DUE_TICKS)
        loop.held_up_s += HELD_UP_S
        await turns(10)
        ticker.arm(0)  # by a message that says nothing of the primary
        await turns(10)
        assert told == []
        loop.held_up_s += HELD_UP_S
        await turns(10)
        assert told == ["tick"]

    on_held_up_loop(test)


def test_a_tick_on_time_waits_for_nothing() -> None:
    """A process that was not held up ticks when its time has come, and not before."""

    async def test(loop: HeldUp) -> None:
        told: list[str] = []
        ticker = Ticker(lambda: told.append("tick"), hears_first=lambda: True)
        ticker.arm(DUE_TICKS)
        ticker.arm(None)
        ticker.arm(0)
        await turns(10)
        assert told == ["tick"]

    on_held_up_loop(test)
