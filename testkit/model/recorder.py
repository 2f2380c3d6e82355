"""Records what each step of the real core changed on its replica.

The simulator and the world are recorded in their process, with `listening`. Real processes write
the same to files (`recording_coordinator.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any, Final, TypeAlias

from coordinator.vsr import NOT_ADMITTED, Replica, ReplicaStatus, Start
from coordinator.vsr.effects import CoreState
from coordinator.vsr.messages import PrepareHeader
from coordinator.vsr.state import ReplicaState

NOT_ADMITTED_IN_MODEL: Final = 999
UNSEEN: Final = frozenset({ReplicaStatus.BLANK.value, ReplicaStatus.HALTED.value})

Listener: TypeAlias = Callable[[Any, Any], None]
"""Takes a core and the event of its step, after the step and before its effects."""


@dataclass(frozen=True, slots=True)
class SeenEntry:
    """An entry as its header tells it; checksums are hexadecimal."""

    checksum: str
    parent: str
    op: int
    view: int
    commit: int


@dataclass(frozen=True, slots=True)
class SeenReplica:
    """One replica after a step. `head` is the checksum of its last entry, or empty."""

    id: int
    status: str
    view: int
    log_view: int
    voting_view: int
    commit: int
    head: str
    durable_op: int
    durable: tuple[int, int, int, int]
    is_quiet: bool
    is_adopting: bool
    restarted: bool = False


@dataclass(slots=True)
class StepWatch:
    """Notices what changed on the replicas of one process or of a whole simulated cluster."""

    entries: dict[str, SeenEntry] = field(default_factory=dict)
    """All entries that some log ever had, in the order in which they were made."""
    _last: dict[int, SeenReplica] = field(default_factory=dict)
    _restarted: set[int] = field(default_factory=set)

    def stepped(self, core: Any, event: Any) -> SeenReplica | None:
        """Return the replica if the step changed what is seen of it."""
        state: ReplicaState = core.state
        if isinstance(event, Start):
            self._restarted.add(state.replica)
        if state.status.value in UNSEEN:
            return None
        now = self._see(state)
        if now == self._last.get(state.replica) and state.replica not in self._restarted:
            return None
        self._last[state.replica] = now
        seen = replace(now, restarted=state.replica in self._restarted)
        self._restarted.discard(state.replica)
        return seen

    def _see(self, state: ReplicaState) -> SeenReplica:
        for entry in state.log.above(0):
            seen = seen_entry(entry.header)
            self.entries.setdefault(seen.checksum, seen)
        head = state.log.head
        return SeenReplica(
            state.replica,
            state.status.value,
            state.view,
            state.log_view,
            voting_view(state.voting_view),
            state.commit_max,
            head.checksum.hex() if head else "",
            state.log.durable_op,
            marks(state.durable),
            state.log.is_quiet,
            state.installation is not None,
        )


@dataclass(slots=True)
class RunRecorder:
    """Keeps what changed in a run, in order."""

    watch: StepWatch = field(default_factory=StepWatch)
    seen: list[SeenReplica] = field(default_factory=list)

    @property
    def entries(self) -> dict[str, SeenEntry]:
        """All entries that some log ever had, by checksum."""
        return self.watch.entries

    def stepped(self, core: Any, event: Any) -> None:
        """Keep what a step changed."""
        seen = self.watch.stepped(core, event)
        if seen is not None:
            self.seen.append(seen)


@contextmanager
def listening(listener: Listener) -> Iterator[None]:
    """Tell the listener of each step of each core of this process, until the block ends."""
    step = Replica.step

    def step_and_tell(self: Replica, event: Any, now_ticks: int) -> Any:
        effects = step(self, event, now_ticks)
        listener(self, event)
        return effects

    Replica.step = step_and_tell  # type: ignore[method-assign]
    try:
        yield
    finally:
        Replica.step = step  # type: ignore[method-assign]


def seen_entry(header: PrepareHeader) -> SeenEntry:
    """Return what is kept of a header."""
    return SeenEntry(
        header.checksum.hex(), header.parent.hex(), header.op, header.view, header.commit
    )


def voting_view(view: int) -> int:
    """Return a voting view in numbers that TLC has."""
    return NOT_ADMITTED_IN_MODEL if view == NOT_ADMITTED else view


def marks(durable: CoreState | None) -> tuple[int, int, int, int]:
    """Return the superblock on the disk."""
    if durable is None:
        return 0, 0, 0, 0
    return (
        durable.view,
        durable.log_view,
        durable.commit_max,
        voting_view(durable.voting_view),
    )
