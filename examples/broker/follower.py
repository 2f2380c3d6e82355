"""A partition as a broker has it, and how it follows the leader."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Final

from examples.broker.partition_log import PartitionLog
from examples.broker.wire import Refused, ask
from viewstamp.client.broker_replicas import HeldReplica, TopicPartition
from viewstamp.client.broker_session import BrokerSession

POLL_S: Final = 0.1


class Replica:
    """One partition as this broker has it."""

    def __init__(self, path: Path) -> None:
        self.log = PartitionLog(path)
        self.committed = 0  # so many messages may be read
        self.reported = 0
        # How many messages followers have, by leader epoch and broker.
        self.has: dict[tuple[int, int], int] = {}
        self.moved = asyncio.Event()  # a follower has asked, or there is a new message
        self.turn = asyncio.Lock()  # one writes, follows, or changes who is in sync


async def follow(session: BrokerSession, place: TopicPartition, replica: Replica) -> None:
    """Fetch from whoever leads a partition, while another broker does, for ever."""
    while True:
        held = session.replicas.get(place)
        try:
            if held is not None and held.leader not in (0, session.broker_id):
                await _catch_up(session, place, replica, held)
                continue
        except (Refused, OSError, TimeoutError):
            pass  # the leader has died, or one of the two has not seen yet who leads
        await asyncio.sleep(POLL_S)


async def _catch_up(
    session: BrokerSession, place: TopicPartition, replica: Replica, held: HeldReplica
) -> None:
    """Ask the leader for more. Raises Refused, OSError, TimeoutError."""
    endpoint = session.brokers[held.leader].endpoints[0]
    request = {
        "do": "fetch",
        "place": place,
        "by": session.broker_id,
        "epoch": held.leader_epoch,
        "from": len(replica.log.entries),
        "last": replica.log.last_epoch,
    }
    answer = await ask(endpoint.host, endpoint.port, request)
    async with replica.turn:
        if session.replicas.get(place) != held:
            return  # what came is of an epoch that is over
        if "cut" in answer:
            replica.log.cut(answer["cut"])
        for epoch, text in answer.get("entries", ()):
            replica.log.append(epoch, text)
