"""Threads that serve many callers in turn."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator

import pytest

from services.runtime.fair_threads import FairThreads
from viewstamp.errors import Refusal

PLACES, PLACES_PER_SHARE, TRUSTED_PLACES = 8, 6, 2


class Work:
    """One thread whose first piece blocks until `go`, and the order in which others ran."""

    def __init__(self, patience_s: float | None = None) -> None:
        """Begin to block."""
        self.threads = FairThreads(
            "test",
            1,
            places=PLACES,
            places_per_share=PLACES_PER_SHARE,
            trusted_places=TRUSTED_PLACES,
            patience_s=patience_s,
        )
        self.done: list[str] = []
        self.gate = threading.Event()
        self.pieces = [asyncio.ensure_future(self.threads.run(b"first", self.gate.wait))]

    async def add(self, share: str, name: str, *, is_trusted: bool = False) -> asyncio.Task[None]:
        """Let a piece wait."""
        task = asyncio.ensure_future(
            self.threads.run(share.encode(), lambda: self.done.append(name), is_trusted=is_trusted)
        )
        await asyncio.sleep(0)
        self.pieces.append(task)  # type: ignore[arg-type]
        return task

    async def go(self) -> list[BaseException | bool | None]:
        """Let everything run."""
        self.gate.set()
        return await asyncio.gather(*self.pieces, return_exceptions=True)


@pytest.fixture
async def work() -> AsyncIterator[Work]:
    """Return blocked work."""
    work = Work()
    await asyncio.sleep(0)
    yield work
    work.gate.set()
    work.threads.shutdown()


async def test_shares_take_turns(work: Work) -> None:
    """A share that comes after many pieces of another waits for one of them, not for all."""
    for number in range(4):
        await work.add("flood", f"flood {number}")
    await work.add("honest", "honest")
    await work.go()
    assert work.done.index("honest") == 1


async def test_share_has_so_many_places(work: Work) -> None:
    """A piece more than a share has places for is refused with a time to come back."""
    for number in range(PLACES_PER_SHARE):
        await work.add("flood", f"{number}")
    refused = await work.add("flood", "one more")
    with pytest.raises(Refusal) as caught:
        await refused
    await work.go()
    assert int(caught.value.details["retry_delay_ms"]) > 0


async def test_greatest_share_gives_up_a_place(work: Work) -> None:
    """When all places are taken, a share with none gets one of the largest share."""
    for number in range(PLACES_PER_SHARE):
        await work.add("flood", f"flood {number}")
    for number in range(PLACES - PLACES_PER_SHARE):
        await work.add("other", f"other {number}")
    await work.add("honest", "honest")
    outcomes = await work.go()
    assert "honest" in work.done and "flood 5" not in work.done
    assert sum(isinstance(outcome, Refusal) for outcome in outcomes) == 1


async def test_trusted_have_places_of_their_own(work: Work) -> None:
    """However much others wait, trusted shares wait beside them and have every second turn."""
    for number in range(PLACES):
        await work.add(f"share {number}", f"flood {number}")
    await work.add("known", "known 1", is_trusted=True)
    await work.add("known", "known 2", is_trusted=True)
    await work.go()
    assert work.done.index("known 1") <= 1 and work.done.index("known 2") <= 3


async def test_nobody_waits_in_vain(work: Work) -> None:
    """A piece whose caller has stopped waiting is refused and not done."""
    impatient = Work(patience_s=-1.0)
    late = await impatient.add("late", "late")
    impatient.gate.set()
    with pytest.raises(Refusal):
        await late
    assert impatient.done == []
    impatient.threads.shutdown()


async def test_quick_work_never_waits(work: Work) -> None:
    """A piece of no share runs while all places are taken."""
    assert await work.threads.run(None, lambda: "quick") == "quick"


async def test_errors_come_through(work: Work) -> None:
    """The caller gets the exception of its piece, and the next piece runs."""

    def fail() -> None:
        raise ZeroDivisionError

    failing = asyncio.ensure_future(work.threads.run(b"x", fail))
    await asyncio.sleep(0)
    await work.add("y", "after")
    await work.go()
    with pytest.raises(ZeroDivisionError):
        await failing
    assert work.done == ["after"]
