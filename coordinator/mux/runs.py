"""How routes alone decide the runs of a prepare, and the stages that each run visits.

A run passes through the stages without waiting for itself: none of its commands enters, or may send
an effect forward to, a stage to which an earlier one may send an effect back. Commands flagged
`sets_grants` go to streams before users, so they share runs only with one another. A transaction is
its own run.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum

from coordinator.mux.types import Route, Stage


class Leg(Enum):
    """What a visit is for."""

    RESOLVE_GRANTS = "resolve_grants"
    FORWARD = "forward"
    BACKWARD = "backward"


@dataclass(frozen=True, slots=True)
class Visit:
    """One batch to one stage, perhaps empty."""

    stage: Stage
    leg: Leg


class RunKind(Enum):
    """What kind of commands a run holds."""

    PLAIN = "plain"
    GRANTS = "grants"
    TRANSACTION = "transaction"


@dataclass(frozen=True, slots=True)
class RunEntry:
    """One span of a prepare, or one transaction of a span (`route` None), in revision order."""

    route: Route | None
    starts_request: bool = False


@dataclass(frozen=True, slots=True)
class RunPlan:
    """One run: the entries from `start` up to `stop`, and its visits (none for a transaction)."""

    kind: RunKind
    start: int
    stop: int
    visits: tuple[Visit, ...]


def split(entries: Sequence[RunEntry]) -> tuple[RunPlan, ...]:
    """Return the runs of a prepare, in order, covering all entries."""
    plans = []
    start = 0
    while start < len(entries):
        stop = _run_end(entries, start)
        plans.append(_plan(entries, start, stop))
        start = stop
    return tuple(plans)


def _run_end(entries: Sequence[RunEntry], start: int) -> int:
    """Return the position after the last entry of the run that begins at `start`."""
    kind = _kind(entries[start])
    # Stages to which a backward effect of this run may be on its way.
    awaited: frozenset[Stage] = frozenset()
    for position in range(start, len(entries)):
        entry = entries[position]
        if _kind(entry) is not kind or (awaited and awaited & reached(entry)):
            return position
        if entry.route is None:
            return position + 1
        awaited |= entry.route.emits_backward
    return len(entries)


def _kind(entry: RunEntry) -> RunKind:
    """Return the kind of run that the entry needs."""
    if entry.route is None:
        return RunKind.TRANSACTION
    return RunKind.GRANTS if entry.route.sets_grants else RunKind.PLAIN


def reached(entry: RunEntry) -> frozenset[Stage]:
    """Return the stages that handle the command itself, or that an effect may reach forward.

    A request enters sessions by its header check, at its first command.
    """
    if entry.route is None:
        return frozenset(Stage)
    stages = [entry.route.owner, *filter(entry.route.sends_forward, Stage)]
    if entry.starts_request:
        stages.append(Stage.SESSIONS)
    if entry.route.resolve_stage is not None:
        stages.append(entry.route.resolve_stage)
    return frozenset(stages)


def _plan(entries: Sequence[RunEntry], start: int, stop: int) -> RunPlan:
    """Return the run of the entries from `start` up to `stop`."""
    kind = _kind(entries[start])
    routes = [entry.route for entry in entries[start:stop] if entry.route is not None]
    if kind is RunKind.TRANSACTION:
        return RunPlan(kind, start, stop, ())
    visits = [Visit(Stage.SESSIONS, Leg.FORWARD)]
    if kind is RunKind.GRANTS:
        visits.append(Visit(Stage.STREAMS, Leg.RESOLVE_GRANTS))
    visits.extend(Visit(stage, Leg.FORWARD) for stage in _forward_stages(routes))
    visits.extend(Visit(stage, Leg.BACKWARD) for stage in _backward_stages(routes))
    return RunPlan(kind, start, stop, tuple(visits))


def _forward_stages(routes: Sequence[Route]) -> list[Stage]:
    """Return the stages after sessions that a command, or an effect of one, may reach forward.

    The options do not say which later stages an effect is for, so all count except catalog, which
    gets none. Runs without a catalog command stay away from catalog, so that reads about the
    cluster are answered while a service is silent.
    are answered while a service is silent.
    """
    first = min(routes, key=lambda route: route.owner)
    entered = frozenset(stage for route in routes for stage in (route.resolve_stage, route.owner))
    return [
        stage
        for stage in Stage
        if stage != Stage.SESSIONS and (stage in entered or first.sends_forward(stage))
    ]


def _backward_stages(routes: Sequence[Route]) -> list[Stage]:
    """Return the stages to which an effect may go back, in stage order."""
    return sorted(frozenset(stage for route in routes for stage in route.emits_backward))
