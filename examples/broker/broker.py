"""A broker in two hundred lines: ADDRESSES PASSWORD_FILE NAME DIRECTORY.

It keeps the rules of docs/brokers.md. Messages are in local files. Followers fetch from the leader
(`follower.py`), and what they ask for says what they have. The leader acknowledges what all in sync
have, drops a slow follower before it goes on without it, and adds one that has caught up.
"""

from __future__ import annotations

import asyncio
import signal
import sys
from contextlib import suppress
from pathlib import Path
from typing import Final

import viewstamp
from examples.broker.follower import POLL_S, Replica, follow
from examples.broker.partition_log import storage_id
from examples.broker.wire import HOST, Document, Refused, serve, tell
from viewstamp.client import Client, ClientError, Refusal
from viewstamp.client.broker_replicas import TopicPartition
from viewstamp.client.broker_session import BrokerSession

# The shortest that the cluster allows: the example is to be over soon.
TIMEOUT_MS: Final = 6_000
# A follower that lacks a message for so long is taken out of sync.
LAG_S: Final = 1.0
REPORT_S: Final = 0.3
MESSAGES_PER_FETCH_MAX: Final = 100


class ExampleBroker:
    """Leads and follows what the session says."""

    def __init__(self, client: Client, session: BrokerSession, directory: Path) -> None:
        self.replicas: dict[TopicPartition, Replica] = {}
        self._client = client
        self._session = session
        self._directory = directory

    async def run(self) -> None:
        """Lead and follow until the session ends."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._report())
            tasks.create_task(self._open(tasks))
            async for change in self._session:
                for place, epoch in change.began.items():
                    tell(broker=self._session.broker_id, leads=place.partition, epoch=epoch)
                    tasks.create_task(self._begin(place))

    async def answer(self, request: Document) -> Document:
        """Answer a producer, a consumer, or a follower. Raises Refused."""
        place = TopicPartition(*request["place"])
        replica = self.replicas.get(place)
        if replica is None:
            raise Refused("this broker does not have the partition")
        epoch = self._epoch(place)
        if request["do"] == "append":
            return await self._append(place, replica, request["text"])
        if request["do"] == "fetch":
            return await self._fetch(place, replica, request, epoch)
        readable = replica.log.entries[request["from"] : replica.committed]
        return {"texts": [text for _, text in readable[:MESSAGES_PER_FETCH_MAX]]}

    def _epoch(self, place: TopicPartition) -> int:
        """Return the epoch in which it leads a partition now. Raises Refused."""
        epoch = self._session.leader_epoch(place)
        if not epoch:
            raise Refused("this broker does not lead the partition")
        return epoch

    # --- As the leader ---

    async def _begin(self, place: TopicPartition) -> None:
        """Have all in sync get what the log of the new leader has, before anything is read."""
        replica = self._replica(place)
        with suppress(Refused):
            async with replica.turn:
                await self._commit(place, replica)

    async def _append(self, place: TopicPartition, replica: Replica, text: str) -> Document:
        async with replica.turn:
            replica.log.append(self._epoch(place), text)
            replica.moved.set()
            await self._commit(place, replica)
            return {"offset": replica.committed - 1}

    async def _commit(self, place: TopicPartition, replica: Replica) -> None:
        """Wait until all in sync have the whole log. Raises Refused once it leads no more."""
        count, clock_s = len(replica.log.entries), asyncio.get_running_loop().time
        late_s = clock_s() + LAG_S
        while missing := self._missing(place, replica, count):
            replica.moved.clear()
            try:
                async with asyncio.timeout_at(late_s):
                    await replica.moved.wait()
            except TimeoutError:
                late_s = clock_s() + LAG_S
                kept = set(self._session.replicas[place].in_sync) - missing
                # Whatever goes wrong, they count as in sync until the cluster has said otherwise.
                with suppress(Refusal, ClientError):
                    await self._session.update_in_sync(place, tuple(sorted(kept)))
        replica.committed = count

    def _missing(self, place: TopicPartition, replica: Replica, count: int) -> set[int]:
        """Return who of those in sync lacks messages, as far as is known in this epoch."""
        epoch = self._epoch(place)
        others = set(self._session.replicas[place].in_sync) - {self._session.broker_id}
        return {each for each in others if replica.has.get((epoch, each), 0) < count}

    async def _fetch(
        self, place: TopicPartition, replica: Replica, request: Document, epoch: int
    ) -> Document:
        """Give a follower what it lacks, or tell it to cut off what is not in this log."""
        log, begin, follower = replica.log, request["from"], request["by"]
        if request["epoch"] != epoch:
            raise Refused(f"the leader epoch is {epoch}")
        if begin > len(log.entries) or (begin and log.entries[begin - 1][0] != request["last"]):
            return {"cut": min(begin - 1, len(log.entries))}
        replica.has[epoch, follower] = begin
        replica.moved.set()
        if begin == len(log.entries):
            if follower not in self._session.replicas[place].in_sync:
                await self._add(place, replica, follower)
            await asyncio.sleep(POLL_S)
        if self._epoch(place) != epoch:
            raise Refused("the leader epoch has changed")
        return {"entries": log.entries[begin : begin + MESSAGES_PER_FETCH_MAX]}

    async def _add(self, place: TopicPartition, replica: Replica, follower: int) -> None:
        """Put a follower that has everything in sync; nothing is acknowledged meanwhile."""
        async with replica.turn:
            epoch, in_sync = self._epoch(place), self._session.replicas[place].in_sync
            if replica.has.get((epoch, follower), 0) < len(replica.log.entries):
                return
            while self._epoch(place) == epoch:
                try:
                    await self._session.update_in_sync(place, (*in_sync, follower))
                    return
                except (Refusal, ClientError):
                    await asyncio.sleep(POLL_S)  # if it took effect, there is a new epoch soon

    async def _report(self) -> None:
        """Tell the cluster now and then where the partitions end that it leads."""
        while True:
            # A copy: partitions come while a report is on its way.
            for place, replica in list(self.replicas.items()):
                if self._session.leader_epoch(place) and replica.committed > replica.reported:
                    end = replica.committed
                    with suppress(Refusal, ClientError):
                        await self._client.topics.report_partition_ends(
                            place.stream_id,
                            place.topic_id,
                            {place.partition: end},
                            broker=self._session.stamp,
                        )
                        replica.reported = end
            await asyncio.sleep(REPORT_S)

    # --- As a follower ---

    async def _open(self, tasks: asyncio.TaskGroup) -> None:
        """Follow each partition that is placed here."""
        while True:
            for place in self._session.replicas.keys() - self.replicas.keys():
                tasks.create_task(follow(self._session, place, self._replica(place)))
            await asyncio.sleep(POLL_S)

    def _replica(self, place: TopicPartition) -> Replica:
        if place not in self.replicas:
            self.replicas[place] = Replica(self._directory / f"{'-'.join(map(str, place))}.log")
        return self.replicas[place]


async def main(addresses: str, password_file: str, name: str, directory: str) -> None:
    """Serve until SIGTERM, and resign."""
    data, password = Path(directory), Path(password_file).read_text().strip()
    data.mkdir(exist_ok=True)
    running = asyncio.current_task()
    assert running is not None
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, running.cancel)
    started: asyncio.Future[ExampleBroker] = asyncio.get_running_loop().create_future()

    async def answer(request: Document) -> Document:
        return await (await started).answer(request)

    endpoints = {"internal": (HOST, await serve(answer))}
    connecting = viewstamp.connect(addresses.split(","), username="root", password=password)
    async with await connecting as client:
        session = client.brokers.session(
            name, endpoints, storage_id=storage_id(data), timeout_ms=TIMEOUT_MS
        )
        async with session:
            started.set_result(ExampleBroker(client, session, data))
            await started.result().run()


if __name__ == "__main__":
    with suppress(asyncio.CancelledError):
        asyncio.run(main(*sys.argv[1:5]))
