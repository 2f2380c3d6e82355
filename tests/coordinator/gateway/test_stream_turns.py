"""Messages of one stream that arrived together are worked on one after another."""

from __future__ import annotations

import asyncio

import pytest

from coordinator.replica.batcher import SessionRequest
from tests.coordinator.gateway.test_stream_fences import Face, turns


class GatheringLog:
    """Takes what comes within one turn of the loop together, as the intake does."""

    def __init__(self) -> None:
        self.prepares: list[list[int]] = []
        """The numbers of the requests in each."""
        self._waiting: list[int] = []

    def submit(self, waiting: SessionRequest) -> None:
        """Let a request wait for the end of the turn."""
        if not self._waiting:
            asyncio.get_running_loop().call_soon(self._prepare)
        self._waiting.append(waiting.logged.number)

    def _prepare(self) -> None:
        self.prepares.append(self._waiting)
        self._waiting = []


async def test_each_message_is_on_its_way_before_the_next_one_is_taken(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Two halves of a crowd that arrived together do not share a prepare, but requests of one
    message do: so one half is written while the other is prepared."""
    face, log = Face(), GatheringLog()
    monkeypatch.setattr(face.world, "submit", log.submit)
    async with face.stream() as wire:
        wire.send(1)
        wire.send(2, 3)
        await turns()
    assert log.prepares == [[1], [2, 3]]
