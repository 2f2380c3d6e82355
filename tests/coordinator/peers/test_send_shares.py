"""How fast peers are sent snapshot files, on a loop whose time the test moves."""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import Iterator

import pytest

from coordinator.peers.send_shares import CHUNK_BYTES, SendShares

BYTES_PER_S = 1_000


class SkippingSelector(selectors.SelectSelector):
    """What a loop waits by, without waiting: time jumps to the next timer."""

    now_s = 0.0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        """Let the time pass that a loop wants to wait for."""
        self.now_s += timeout or 0
        return super().select(0)


class SkippingLoop(asyncio.SelectorEventLoop):
    """A loop in which nobody waits."""

    def __init__(self) -> None:
        """Begin at time 0."""
        self.waits = SkippingSelector()
        super().__init__(self.waits)

    @property
    def now_s(self) -> float:
        """The time of the test."""
        return self.waits.now_s

    def time(self) -> float:
        """Return the time of the test."""
        return self.waits.now_s


@pytest.fixture
def loop() -> Iterator[SkippingLoop]:
    """Yield a loop of its own."""
    made = SkippingLoop()
    yield made
    made.close()


async def read(shares: SendShares, replica: int, chunks: int, log: list[int]) -> None:
    """Take chunks of 500 bytes, one after another."""
    for _ in range(chunks):
        await shares.take(replica, 500)
        log.append(replica)


def test_bytes_take_their_time(loop: SkippingLoop) -> None:
    """Ten chunks of half a second's bytes take what nine of them take; then time saved is lost."""
    shares = SendShares(BYTES_PER_S)
    loop.run_until_complete(read(shares, 1, 10, []))
    assert loop.now_s == pytest.approx(4.5)
    loop.waits.now_s += 100
    loop.run_until_complete(read(shares, 1, 3, []))
    assert loop.now_s == pytest.approx(4.5 + 100 + 1.0)
    assert shares.sent_bytes == {1: 13 * 500}


def test_peers_have_equal_shares(loop: SkippingLoop) -> None:
    """A peer that reads one file gets as much as one that reads four at once."""
    shares, log = SendShares(BYTES_PER_S), list[int]()

    async def all_of_them() -> None:
        await asyncio.gather(*(read(shares, replica, 8, log) for replica in (1, 1, 1, 1, 2)))

    loop.run_until_complete(all_of_them())
    assert log[:17].count(2) == 8
    assert loop.now_s == pytest.approx((5 * 8 - 1) * 0.5)


def test_who_is_cancelled_takes_no_time(loop: SkippingLoop) -> None:
    """The turn of a fetch that was given up goes to the next one at once."""
    shares, log = SendShares(BYTES_PER_S), list[int]()

    async def one_is_cancelled() -> None:
        tasks = [asyncio.ensure_future(read(shares, replica, 1, log)) for replica in (1, 2, 3)]
        await asyncio.sleep(0)
        tasks[1].cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    loop.run_until_complete(one_is_cancelled())
    assert log == [1, 3]
    assert loop.now_s == pytest.approx(0.5)
    assert shares.sent_bytes == {1: 500, 3: 500}


def test_no_limit(loop: SkippingLoop) -> None:
    """Without a limit nobody waits, and bytes count all the same."""
    shares = SendShares(0)
    loop.run_until_complete(read(shares, 1, 10, []))
    assert loop.now_s == 0
    assert shares.sent_bytes == {1: 5_000}


@pytest.mark.parametrize(
    ("bytes_per_s", "chunk_bytes"),
    [(0, CHUNK_BYTES), (1_024, 256), (400_000, 100_000), (1 << 30, CHUNK_BYTES)],
)
def test_chunks_are_small_where_little_may_be_sent(bytes_per_s: int, chunk_bytes: int) -> None:
    """A chunk takes at most a quarter of a second of what may be sent."""
    assert SendShares(bytes_per_s).chunk_bytes == chunk_bytes
