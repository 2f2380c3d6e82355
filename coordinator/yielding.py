"""Whether this replica's services may yield to the processes of others on the same machine.

Callers wait until a quorum has an entry, and until the primary's services have applied it. Those of
a backup may come later, where replicas share processors. But a backup that falls behind would take
long to become the primary, and others keep their journal for it. So it yields only as long as it
keeps up.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from viewstamp.telemetry import fields

LOOK_INTERVAL_MS: Final = 50
# What is journaled may wait so long for the stages of a backup that yields.
BEHIND_MS: Final = 250
# A backup that fell behind yields again once it has kept up for so long.
KEEPS_UP_MS: Final = 1000

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Seen:
    """What a look at the replica finds. `follows`: it is in status normal, and not the primary.

    `op` is the head of its log. What it takes for committed would not do: that stays near to what
    has been applied, however much of the log is left.
    """

    follows: bool
    op: int
    applied_op: int


class LagWatch:
    """How long an entry waits for the stages: one at a time is marked and timed."""

    def __init__(self) -> None:
        self._marked_op = 0
        self._marked_ms = 0

    def look(self, seen: Seen, now_ms: int) -> int:
        """Return for how many milliseconds the marked op has waited, 0 if it waits no more."""
        is_gone = seen.op < self._marked_op  # discarded, with its view
        if seen.applied_op >= self._marked_op or is_gone:
            self._marked_op, self._marked_ms = seen.op, now_ms
        return now_ms - self._marked_ms


class Decision:
    """Whether to yield, from one look to the next."""

    def __init__(self) -> None:
        self.yields = False
        self._lag = LagWatch()
        self._behind_ms: int | None = None  # when it was behind last; None: not while it follows

    def look(self, seen: Seen, now_ms: int) -> bool:
        """Return whether this replica yields from now on."""
        lag_ms = self._lag.look(seen, now_ms)
        if not seen.follows:
            self._behind_ms = None
        elif lag_ms >= BEHIND_MS:
            self._behind_ms = now_ms
        keeps_up = self._behind_ms is None or now_ms - self._behind_ms >= KEEPS_UP_MS
        self.yields = seen.follows and keeps_up
        return self.yields


@dataclass(frozen=True, slots=True)
class YieldingPorts:
    """What is looked at, and who is told of every change."""

    look: Callable[[], Seen]
    said: Callable[[bool], None]
    clock_ms: Callable[[], int]


class Yielding:
    """Looks at one replica, and says when it begins and when it ends to yield."""

    def __init__(self, ports: YieldingPorts) -> None:
        self._ports = ports
        self._decision = Decision()

    async def run(self) -> None:
        """Look until cancelled."""
        while True:
            self.look()
            await asyncio.sleep(LOOK_INTERVAL_MS / 1000)

    def look(self) -> None:
        """Look once, and tell what has changed."""
        before = self._decision.yields
        yields = self._decision.look(self._ports.look(), self._ports.clock_ms())
        if yields != before:
            self._ports.said(yields)


def say(yields: bool) -> None:
    """Tell the supervisor, in a line of JSON on stdout."""
    try:
        print(json.dumps({"yields": yields}), flush=True)  # noqa: T201
    except OSError as error:
        # Nothing is wrong with a replica that nobody prefers, or that is preferred to nobody.
        _log.warning("the supervisor could not be told", extra=fields(error=str(error)))
