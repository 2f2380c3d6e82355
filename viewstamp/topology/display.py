"""Plans for people, line by line with a colour, and for programs."""

from __future__ import annotations

from collections.abc import Iterator
from types import MappingProxyType
from typing import Any, Final, NamedTuple

from viewstamp.topology.changes import ChangeVerb, FieldChange, Plan, PlannedChange
from viewstamp.topology.steps import pieces_of, steps_of


class StyledLine(NamedTuple):
    """A line and its colour, None for that of the terminal."""

    text: str
    colour: str | None = None


_SIGNS: Final = MappingProxyType(
    {
        ChangeVerb.CREATE: ("+", "green"),
        ChangeVerb.UPDATE: ("~", "yellow"),
        ChangeVerb.DELETE: ("-", "red"),
    }
)


def plan_lines(plan: Plan) -> Iterator[StyledLine]:
    """Yield the changes with their fields and losses, the problems, and a sum."""
    for change in plan.changes:
        yield from _change_lines(change)
    for problem in plan.problems:
        yield StyledLine(f"! {problem}", "red")
    if plan.changes:
        yield StyledLine(_sum(plan))
    else:
        yield StyledLine(f"nothing to do: revision {plan.revision} is as declared")


def plan_values(plan: Plan) -> dict[str, Any]:
    """Return a plan as JSON values."""
    return {
        "revision": plan.revision,
        "counts": {verb.value: plan.count(verb) for verb in ChangeVerb},
        "transactions": len(pieces_of(steps_of(plan))),
        "changes": [change_values(change) for change in plan.changes],
        "problems": list(plan.problems),
    }


def change_values(change: PlannedChange) -> dict[str, Any]:
    """Return a change as JSON values."""
    return {
        "action": change.verb.value,
        "kind": change.kind.value,
        "path": list(change.path),
        "fields": [{"name": each.name, "old": each.old, "new": each.new} for each in change.fields],
        "losses": list(change.losses),
    }


def _change_lines(change: PlannedChange) -> Iterator[StyledLine]:
    sign, colour = _SIGNS[change.verb]
    yield StyledLine(f"{sign} {change.kind.value} {change.name}", colour)
    for each in change.fields:
        yield StyledLine(f"    {_field(each)}", colour)
    for loss in change.losses:
        yield StyledLine(f"    loses {loss}", "red")


def _field(change: FieldChange) -> str:
    new = _shown(change.new)
    return (
        f"{change.name}: {new}"
        if not change.old
        else f"{change.name}: {_shown(change.old)} → {new}"
    )


def _shown(value: Any) -> str:
    return (", ".join(value) or "none") if isinstance(value, list) else str(value)


def _sum(plan: Plan) -> str:
    counts = (
        f"{plan.count(ChangeVerb.CREATE)} to create, {plan.count(ChangeVerb.UPDATE)} to update, "
        f"{plan.count(ChangeVerb.DELETE)} to delete"
    )
    pieces = len(pieces_of(steps_of(plan)))
    how = "in one transaction" if pieces == 1 else f"in {pieces} transactions, NOT as one"
    return f"from revision {plan.revision}: {counts}, {how}"
