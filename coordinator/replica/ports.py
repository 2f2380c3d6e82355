"""What the driver knows of the rest of the shell, and what the rest knows of it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, Final, Protocol

from coordinator import vsr
from coordinator.base.clock import wall_clock_us
from coordinator.mux import types as mux_types


class StageLink(Protocol):
    """The way to one stage."""

    def send(self, batch: Any) -> None:
        """Send a batch, in order."""


@dataclass(frozen=True, slots=True)
class DriverClock:
    """The time by all replicas' clocks, in microseconds since 1970.

    `stamp_us` is for entries: 0 lets log time stand still, while too little is known. `now_us` is
    the best that is known, for whatever can be wrong for a while.
    """

    stamp_us: Callable[[], int]
    now_us: Callable[[], int]


WALL_CLOCK: Final = DriverClock(wall_clock_us, wall_clock_us)


class JournalRoom(Enum):
    """Whether the journal has room for another prepare."""

    FREE = "free"
    SOON = "soon"  # a segment is being made
    FULL = "full"  # the disk is full; the reserve is whole
    EXHAUSTED = "exhausted"  # the disk is full; part of the reserve is used


@dataclass(frozen=True, slots=True)
class DriverEvents:
    """What the driver tells the rest of the shell."""

    bootstrap_ready: Callable[[tuple[bytes, ...]], None]
    status_changed: Callable[[vsr.StatusChanged], None]
    applied: Callable[[mux_types.Applied], None]
    cut_taken: Callable[[mux_types.CutTaken], None]
    catalog_changed: Callable[[mux_types.CatalogChanged], None]
    fatal: Callable[[BaseException], None]
    room: Callable[[], JournalRoom]
    persisting: Callable[[Sequence[Any]], None]
    persisted: Callable[[Sequence[Any]], None]
    local_read: Callable[[mux_types.StageBatch], mux_types.StageReply]  # the catalog stage
    stage: Callable[[mux_types.Stage], StageLink]  # the way to any other stage
    committed: Callable[[int], None] = lambda op: None  # a quorum has it
    handed_over: Callable[[int], None] = lambda op: None  # the mux has it
    epoch_began: Callable[[vsr.Membership], None] = lambda membership: None
    entry_room: Callable[[], JournalRoom] | None = None  # for entries of others, if it differs


@dataclass(slots=True)
class Progress:
    """How far this replica has come; for status and metrics."""

    op: int = 0
    committed_op: int = 0
    applied_op: int = 0
    committed_revision: int = 0
    handed_over_bytes: int = 0  # of bodies, since the process began
    applied_revision: int = 0
    view: int = 0
    primary: int = 0
    status: vsr.ReplicaStatus = vsr.ReplicaStatus.RECOVERING
    dropped: dict[str, int] = field(default_factory=dict)
