"""Records a run of the simulator as the specification sees it: one record for each change."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Final

from coordinator.vsr import NOT_ADMITTED, ReplicaStatus
from coordinator.vsr.effects import CoreState
from coordinator.vsr.messages import PARENT_OF_FIRST, PrepareHeader
from coordinator.vsr.state import ReplicaState

NOT_ADMITTED_IN_MODEL: Final = 999
UNSEEN: Final = (ReplicaStatus.BLANK, ReplicaStatus.HALTED)


@dataclass(frozen=True, slots=True)
class ObservedReplica:
    """One replica after a step. `log` has the stamps of its entries; see `LogSelection.tla`."""

    id: int
    status: str
    view: int
    log_view: int
    voting_view: int
    commit: int
    log: tuple[int, ...]
    durable_op: int
    durable: tuple[int, int, int, int]
    restarted: bool = False

    def tla(self) -> str:
        """Return the record in TLA+."""
        view, log_view, commit, voting_view = self.durable
        log = ", ".join(f"{stamp}" for stamp in self.log)
        return (
            f'[id |-> {self.id}, status |-> "{self.status}", view |-> {self.view}, '
            f"log_view |-> {self.log_view}, voting_view |-> {self.voting_view}, "
            f"commit |-> {self.commit}, log |-> <<{log}>>, durable_op |-> {self.durable_op}, "
            f"durable |-> [view |-> {view}, log_view |-> {log_view}, commit |-> {commit}, "
            f"voting_view |-> {voting_view}], restarted |-> {f'{self.restarted}'.upper()}]"
        )


@dataclass(slots=True)
class RunRecorder:
    """Takes the place of a listener of the simulator's steps, and keeps what changed.

    The record begins when all replicas have op 1 and are normal, and ends after `changes_max`.
    """

    replica_count: int
    changes_max: int
    beginning: dict[int, ObservedReplica] = field(default_factory=dict)
    changes: list[ObservedReplica] = field(default_factory=list)
    _last: dict[int, ObservedReplica] = field(default_factory=dict)
    _chains: dict[bytes, tuple[int, ...]] = field(default_factory=lambda: {PARENT_OF_FIRST: ()})
    _restarted: set[int] = field(default_factory=set)

    def started(self, replica: int) -> None:
        """Note that a process began."""
        self._restarted.add(replica)

    def stepped(self, replica: int, core: Any) -> None:
        """Keep what a step changed."""
        state: ReplicaState = core.state
        if state.status in UNSEEN or len(self.changes) >= self.changes_max:
            return
        now = self.observe(state, restarted=replica in self._restarted and bool(self.beginning))
        self._restarted.discard(replica)
        before, self._last[replica] = self._last.get(replica), now
        if not self.beginning:
            self._begin()
        elif now != before:
            self.changes.append(now)

    def observe(self, state: ReplicaState, *, restarted: bool) -> ObservedReplica:
        """Return what the specification sees of a replica."""
        for entry in state.log.above(0):
            self._chain(entry.header)
        head = state.log.head
        return ObservedReplica(
            state.replica,
            state.status.value,
            state.view,
            state.log_view,
            voting_view(state.voting_view),
            state.commit_max,
            self._chains[head.checksum] if head else (),
            state.log.durable_op,
            marks(state.durable),
            restarted,
        )

    def _chain(self, header: PrepareHeader) -> None:
        """Give a new entry its stamp: numbers follow the order in which entries were made."""
        if header.checksum not in self._chains:
            number = len(self._chains) - 1
            is_first = header.parent == PARENT_OF_FIRST
            stamp = 0 if is_first else 1_000_000 * header.view + 1_000 * number + header.commit
            self._chains[header.checksum] = (*self._chains[header.parent], stamp)

    def _begin(self) -> None:
        known = [self._last.get(replica) for replica in range(self.replica_count)]
        if all(each is not None and each.status == "normal" for each in known):
            self.beginning = dict(self._last)

    def module(self) -> str:
        """Return the module that `Trace.tla` reads."""
        first = ",\n    ".join(self.beginning[id].tla() for id in sorted(self.beginning))
        changes = ",\n    ".join(each.tla() for each in self.changes)
        return (
            "---- MODULE TraceData ----\n"
            f"Beginning == <<\n    {first}>>\n"
            f"Observed == <<\n    {changes}>>\n"
            "====\n"
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
