"""When the primary begins a snapshot by itself.

Thresholds count from the last *completed* cut: the changes of a failed one are still not durable
and their journal is still there. So after a failure the thresholds stay exceeded, and the next
attempt comes as soon as the back-off allows: a broken disk costs one cut per back-off, not one per
second.

A snapshot requested by CreateSnapshot begins at once, without these thresholds or a back-off.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import Enum
from types import MappingProxyType
from typing import Final

from viewstamp import limits

RETRY_DELAY_MS: Final = 5_000
RETRY_DELAY_MAX_MS: Final = 600_000


@dataclass(frozen=True, slots=True)
class TriggerSettings:
    """How much may gather before a snapshot is begun, and how many are kept."""

    commands: int = limits.SNAPSHOT_COMMANDS
    journal_bytes: int = limits.SNAPSHOT_JOURNAL_BYTES
    interval_ms: int = limits.SNAPSHOT_INTERVAL_MS
    item_log_bytes: int = limits.ITEM_LOG_CUT_BYTES
    retry_delay_ms: int = RETRY_DELAY_MS
    retry_delay_max_ms: int = RETRY_DELAY_MAX_MS
    keep_last: int = limits.SNAPSHOT_KEEP_LAST
    keep_daily: int = limits.SNAPSHOT_KEEP_DAILY


class Trigger(Enum):
    """Why a snapshot that nobody asked for is begun, the most urgent first."""

    DISK_FULL = "the disk is full"
    RING = "the room that is taken of the ring"
    ITEM_LOG = "the item log"
    COMMANDS = "commands since the last snapshot"
    JOURNAL = "journal bytes since the last snapshot"
    INTERVAL = "time since the last snapshot"


@dataclass(frozen=True, slots=True)
class ReplicaLoad:
    """The present load of the replica.

    `revision` is the last applied one, `journal_bytes` the bytes handed over from the journal to
    the stages since this process began, replayed or new, `item_log_bytes` the longest item log.
    `is_ring_due` says that so much of a ring journal is taken that a snapshot has to free some.
    """

    now_ms: int
    revision: int
    journal_bytes: int
    item_log_bytes: int
    is_disk_full: bool = False
    is_ring_due: bool = False


@dataclass(frozen=True, slots=True)
class _Since:
    """What has gathered since the last completed cut."""

    commands: int
    journal_bytes: int
    elapsed_ms: int
    load: ReplicaLoad


class SnapshotTriggers:
    """Decides on the primary whether to begin a snapshot; told of every cut and decision."""

    def __init__(self, settings: TriggerSettings, cut_revision: int = 0) -> None:
        """Begin behind the cut that the replica was restored from, if any."""
        self.settings = settings
        self._base = _Base(cut_revision + (DECISION_COMMANDS if cut_revision else 0), 0, None)
        self._cuts: dict[int, _Base] = {}
        self._failures = 0
        self._not_before_ms: int | None = None

    def restart_interval(self, now_ms: int) -> None:
        """Count the whole interval from now on: this replica has become primary."""
        self._base = _Base(self._base.revision, self._base.journal_bytes, now_ms)

    def cut_taken(self, generation: int, revision: int, load: ReplicaLoad) -> None:
        """Remember what the cut covers: all up to `revision`, and up to now."""
        self._cuts[generation] = _Base(revision, load.journal_bytes, load.now_ms)

    def completed(self, generation: int) -> None:
        """Count from this cut on; the back-off is over."""
        cut = self._cuts.pop(generation, None)
        self._forget_before(generation)
        self._failures, self._not_before_ms = 0, None
        if cut is not None:
            # The decision is a command too, and must not count as a change of an idle cluster.
            self._base = _Base(cut.revision + DECISION_COMMANDS, cut.journal_bytes, cut.at_ms)

    def failed(self, generation: int, now_ms: int) -> None:
        """Wait before the next attempt, twice as long after each failure in a row."""
        self._forget_before(generation + 1)
        delay_ms = min(
            self.settings.retry_delay_ms << min(self._failures, _DOUBLINGS_MAX),
            self.settings.retry_delay_max_ms,
        )
        self._failures += 1
        self._not_before_ms = now_ms + delay_ms

    def due(self, load: ReplicaLoad) -> Trigger | None:
        """Return why to begin a snapshot now, while none is under way; None if not."""
        if self._not_before_ms is not None and load.now_ms < self._not_before_ms:
            return None
        since = self._since(load)
        return next((t for t, is_due in _RULES.items() if is_due(since, self.settings)), None)

    def _since(self, load: ReplicaLoad) -> _Since:
        if self._base.at_ms is None:
            self.restart_interval(load.now_ms)
        assert self._base.at_ms is not None
        return _Since(
            commands=load.revision - self._base.revision,
            journal_bytes=load.journal_bytes - self._base.journal_bytes,
            elapsed_ms=load.now_ms - self._base.at_ms,
            load=load,
        )

    def _forget_before(self, generation: int) -> None:
        self._cuts = {g: cut for g, cut in self._cuts.items() if g >= generation}


@dataclass(frozen=True, slots=True)
class _Base:
    """Where counting begins."""

    revision: int
    journal_bytes: int
    at_ms: int | None  # None: not known yet


# CompleteSnapshot.
DECISION_COMMANDS: Final = 1
_DOUBLINGS_MAX: Final = 32

_RULES: Final[Mapping[Trigger, Callable[[_Since, TriggerSettings], bool]]] = MappingProxyType(
    {
        Trigger.DISK_FULL: lambda since, _: since.load.is_disk_full and since.commands > 0,
        Trigger.RING: lambda since, _: since.load.is_ring_due and since.commands > 0,
        Trigger.ITEM_LOG: lambda since, s: since.load.item_log_bytes > s.item_log_bytes,
        Trigger.COMMANDS: lambda since, s: 0 < s.commands <= since.commands,
        Trigger.JOURNAL: lambda since, s: 0 < s.journal_bytes <= since.journal_bytes,
        Trigger.INTERVAL: lambda since, s: (
            since.commands > 0 and 0 < s.interval_ms <= since.elapsed_ms
        ),
    }
)
