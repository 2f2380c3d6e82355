"""What the specification sees of recorded runs: replicas after steps, and the module for TLC."""

from __future__ import annotations

from dataclasses import dataclass


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
    is_quiet: bool
    is_adopting: bool
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
            f"voting_view |-> {voting_view}], quiet |-> {truth(self.is_quiet)}, "
            f"adopting |-> {truth(self.is_adopting)}, restarted |-> {truth(self.restarted)}]"
        )


def truth(value: bool) -> str:
    """Return a truth value in TLA+."""
    return "TRUE" if value else "FALSE"


@dataclass(frozen=True, slots=True)
class ObservedRun:
    """All replicas at a moment at which they are normal, and what changed after it, in order.

    `batches` is how many entries the logs have in the beginning, besides the first.
    """

    beginning: tuple[ObservedReplica, ...]
    changes: tuple[ObservedReplica, ...]
    batches: int = 0

    @property
    def restarts(self) -> int:
        """How many processes began."""
        return sum(change.restarted for change in self.changes)

    @property
    def views(self) -> int:
        """How many views began, at least, after that of the beginning."""
        first = max(each.view for each in self.beginning)
        return max((change.view for change in self.changes), default=first) - first

    @property
    def liveliness(self) -> int:
        """How much happened besides normal operation."""
        return self.restarts + self.views

    def module(self) -> str:
        """Return the module that `Trace.tla` reads."""
        first = ",\n    ".join(each.tla() for each in self.beginning)
        changes = ",\n    ".join(each.tla() for each in self.changes)
        return (
            "---- MODULE TraceData ----\n"
            f"Beginning == <<\n    {first}>>\n"
            f"Observed == <<\n    {changes}>>\n"
            f"BatchesBefore == {self.batches}\n"
            "====\n"
        )
