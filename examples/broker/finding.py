"""How producers and consumers find the leader of a partition, and ask it."""

from __future__ import annotations

import asyncio
from typing import Final

from examples.broker.wire import Document, Refused, ask
from viewstamp.client import STALE, Client, ClientError, Refusal

# The stream and the topic of the example.
TOPIC: Final = ("example", "messages")
RETRY_S: Final = 0.2


class LeaderFinder:
    """Asks the leaders of partitions; looks for another one when one does not answer."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._addresses: dict[int, tuple[str, int]] = {}

    async def ask_leader(self, partition: int, request: Document) -> Document:
        """Return the answer of the leader, however long it takes until there is one.

        A request whose answer was lost is sent again, so a message may be written twice.
        """
        while True:
            try:
                if partition not in self._addresses:
                    await self._look()
                return await ask(*self._addresses[partition], request)
            except (KeyError, Refused, Refusal, ClientError, OSError, TimeoutError):
                self._addresses.pop(partition, None)
                await asyncio.sleep(RETRY_S)

    async def _look(self) -> None:
        """Read from any replica who leads what, and where that is."""
        brokers = {each.id: each async for each in self._client.brokers.list(consistency=STALE)}
        async for placement in self._client.brokers.placements(*TOPIC, consistency=STALE):
            if placement.leader in brokers:
                endpoint = brokers[placement.leader].endpoints[0]
                self._addresses[placement.partition] = (endpoint.host, endpoint.port)
