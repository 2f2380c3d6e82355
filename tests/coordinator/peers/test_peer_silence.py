"""How long peers are silent, as the metrics page tells it."""

from __future__ import annotations

from tests.coordinator.peers.peer_trial import config, free_addresses, serving, until


async def test_the_silence_of_peers() -> None:
    """A peer that was never heard is silent since we listen; one that was heard, since then."""
    now_ms = 5
    addresses = free_addresses()
    async with serving(config(addresses, 0), clock_ms=lambda: now_ms) as trial:
        now_ms = 105
        assert trial.peers.silences_ms() == dict.fromkeys((1, 2), 100)
        async with serving(config(addresses, 1)):
            await until(lambda: trial.peers.silences_ms()[1] == 0)
        now_ms = 112
        assert trial.peers.silences_ms() == {1: 7, 2: 107}
