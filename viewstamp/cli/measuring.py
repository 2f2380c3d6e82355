"""What `viewstamp top` shows: one reading of a cluster after another, and rates between them.

A reading that fails leaves the values of the one before, with the time since when there is no
answer. All reads together are bounded, however many groups there are.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Final

import grpc.aio

from viewstamp.cli.canonical import joined, part
from viewstamp.cli.output import plain
from viewstamp.client import Client, ClientError
from viewstamp.errors import Refusal
from viewstamp.metering import GroupLag, GroupLags, LogRates

MICROSECONDS_PER_S: Final = 1_000_000


@dataclass(slots=True)
class ClusterMeter:
    """Reads a cluster again and again. `client` has the deadline of one reading.

    `groups_shown` is the number of groups with the highest lag.
    """

    client: Client
    groups_shown: int
    clock_s: Callable[[], float] = time.monotonic
    _log_rates: LogRates = field(default_factory=LogRates)
    _lags: GroupLags | None = None
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
            "epoch": found.epoch,
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
        counters = {"commands_per_s": revision, "entries_per_s": op}
        return self._log_rates.take(self.clock_s(), counters)

    async def _worst(self) -> list[dict[str, Any]]:
        """Return the groups with the highest lag, of those that the user may read."""
        if self._lags is None:
            self._lags = GroupLags(self.client)
        return [_row(each) for each in await self._lags.worst(self.groups_shown)]


def _row(found: GroupLag) -> dict[str, Any]:
    place = found.place
    parts = (place.stream, place.topic, place.group)
    name = joined(*(part(each.name, each.id) for each in parts))
    return {"group": name, "lag": found.lag, "lag_is_whole": found.is_whole}


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="milliseconds")


def _age_s(created_at_us: int) -> int | None:
    """Return the age of a snapshot; None if there is none."""
    if not created_at_us:
        return None
    return max(0, int(time.time()) - created_at_us // MICROSECONDS_PER_S)
