"""What `viewstamp top` shows: one reading of a cluster after another, and rates between them.

A reading that fails leaves the values of the one before, with the time since when there is no
answer. All reads together are bounded, however many groups there are.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Final

import grpc.aio

from viewstamp import limits
from viewstamp.api.consumer_groups.v1 import consumer_groups_pb2
from viewstamp.api.consumer_groups.v1 import consumer_groups_service_pb2 as groups_api
from viewstamp.cli.canonical import joined, part
from viewstamp.cli.output import plain
from viewstamp.client import Client, ClientError
from viewstamp.client.identifiers import group_name
from viewstamp.errors import Refusal

# Groups of which the lag is read each time, and topics that are looked at for them.
GROUPS_READ_MAX: Final = 100
TOPICS_READ_MAX: Final = 200
# Groups are looked for again after so many readings.
READINGS_PER_SEARCH: Final = 10
MICROSECONDS_PER_S: Final = 1_000_000


@dataclass(frozen=True, slots=True)
class _Place:
    """A group, with its canonical name."""

    name: str
    group: consumer_groups_pb2.ConsumerGroup


@dataclass(slots=True)
class ClusterMeter:
    """Reads a cluster again and again. `client` has the deadline of one reading.

    `groups_shown` is the number of groups with the highest lag.
    """

    client: Client
    groups_shown: int
    clock_s: Callable[[], float] = time.monotonic
    _readings: int = 0
    _counted: tuple[float, int, int] | None = None
    _places: list[_Place] = field(default_factory=list)
    _last: dict[str, Any] = field(default_factory=dict)

    async def read(self) -> dict[str, Any]:
        """Return the values of now; those of the last answer if there is none, and since when."""
        try:
            self._last = await self._values()
        except (Refusal, ClientError, grpc.aio.AioRpcError) as error:
            since = self._last.get("no_answer_since") or _now()
            self._last = {**self._last, "no_answer_since": since, "failure": str(error)}
        return self._last

    async def _values(self) -> dict[str, Any]:
        found, snapshot = await asyncio.gather(self.client.status(), self.client.snapshots.latest())
        revision, op = found.header.revision, found.header.op
        values = plain(found)
        return {
            "at": _now(),
            "cluster": found.cluster,
            "primary": found.primary,
            "view": found.header.view,
            "revision": revision,
            **self._rates(revision, op),
            "sessions": found.sessions,
            "snapshot": snapshot.generation,
            "snapshot_age_s": _age_s(snapshot.created_at),
            "replicas": values["replicas"],
            "alarms": values["alarms"],
            "groups": await self._worst() if self.groups_shown else [],
            "no_answer_since": None,
            "failure": None,
        }

    def _rates(self, revision: int, op: int) -> dict[str, float | None]:
        """Return commands and entries of the log in a second since the last answer."""
        now, before = self.clock_s(), self._counted
        self._counted = now, revision, op
        if before is None or now <= before[0]:
            return {"commands_per_s": None, "entries_per_s": None}
        passed_s = now - before[0]
        return {
            "commands_per_s": round((revision - before[1]) / passed_s, 1),
            "entries_per_s": round((op - before[2]) / passed_s, 1),
        }

    async def _worst(self) -> list[dict[str, Any]]:
        """Return the groups with the highest lag, of those that the user may read."""
        if self._readings % READINGS_PER_SEARCH == 0:
            self._places = [place async for place in _found_groups(self.client)]
        self._readings += 1
        lags = await asyncio.gather(*(_lag(self.client, place) for place in self._places))
        known = [lag for lag in lags if lag is not None]
        return sorted(known, key=lambda lag: -lag["lag"])[: self.groups_shown]


async def _found_groups(client: Client) -> AsyncIterator[_Place]:
    """Yield the first groups, as far as the user may see them."""
    topics = groups = 0
    try:
        async for stream in client.streams.list():
            async for topic in client.topics.list(stream.id):
                topics += 1
                if topics > TOPICS_READ_MAX:
                    return
                above = joined(part(stream.name, stream.id), part(topic.name, topic.id))
                async for group in client.groups.list(stream.id, topic.id):
                    groups += 1
                    if groups > GROUPS_READ_MAX:
                        return
                    yield _Place(joined(above, part(group.name, group.id)), group)
    except Refusal:
        return  # not permitted, or deleted meanwhile: the next search finds what there is then


async def _lag(client: Client, place: _Place) -> dict[str, Any] | None:
    """Return a group with the sum of its known lags; None if it is gone, or may not be read."""
    group = place.group
    name = group_name(group.stream_id, group.topic_id, group.id)
    request = groups_api.FetchOffsetsRequest(**name, page_size=limits.OFFSETS_PAGE_MAX)
    try:
        page = await client.call(request)
    except Refusal:
        return None
    lag = sum(each.lag for each in page.offsets if each.HasField("lag"))
    return {"group": place.name, "lag": lag, "lag_is_whole": not page.next_page_token}


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="milliseconds")


def _age_s(created_at_us: int) -> int | None:
    """Return the age of a snapshot; None if there is none."""
    if not created_at_us:
        return None
    return max(0, int(time.time()) - created_at_us // MICROSECONDS_PER_S)
