"""Counts the runs that requests make together, from a few bits of each, to fill a prepare.

`coordinator.mux.runs` defines a run. Here a command is a set of bits that it needs, and a run a set
of bits that it bars from later commands: stages to which an effect may be on its way back, and
kinds of commands that cannot share the run. A command that needs a barred bit begins another run.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, NamedTuple

from coordinator.mux.runs import RunEntry, reached
from coordinator.mux.stage import STAGES, Stage
from coordinator.mux.types import Route
from viewstamp import limits

_STAGE_BITS: Final = {stage: 1 << stage for stage in STAGES}
_PLAIN: Final = 1 << len(STAGES) + 1
_GRANTS: Final = _PLAIN << 1
_ALONE: Final = _PLAIN << 2  # a transaction, or a request of several runs; barred by every run

# The first command of a request also needs sessions, which check the request's header.
STARTS_REQUEST: Final = _STAGE_BITS[Stage.SESSIONS]
# Bars everything, as at the beginning of a prepare.
BARS_ALL: Final = (_PLAIN << 3) - 1
_BARRED_BY_PLAIN: Final = _GRANTS | _ALONE


class Shape(NamedTuple):
    """What commands that stay together add to the runs of a prepare."""

    runs: int  # that they make by themselves
    needs: int  # bits; without STARTS_REQUEST
    bars: int  # bits, of their last run
    weight: int  # in commands of a share and of a turn, where their number is less


# For commands whose method is not inspected: the replica's own, which send nothing back.
PLAIN: Final = Shape(1, _PLAIN | sum(_STAGE_BITS.values()), _BARRED_BY_PLAIN, 0)
# For a request without commands.
NOTHING: Final = Shape(0, 0, 0, 0)
_TRANSACTION: Final = Shape(1, _ALONE, BARS_ALL, limits.COMMANDS_PER_RUN)


def command_shape(route: Route | None) -> Shape:
    """Return the shape of any number of commands of one method; None for one transaction."""
    if route is None:
        return _TRANSACTION
    needs = _GRANTS if route.sets_grants else _PLAIN
    bars = _ALONE | (_PLAIN if route.sets_grants else _GRANTS)
    needs |= _bits(reached(RunEntry(route)))
    bars |= _bits(route.emits_backward)
    # A user who alternates such commands with others makes two runs; the others count as commands.
    weight = 0 if bars == _BARRED_BY_PLAIN else limits.COMMANDS_PER_RUN
    return Shape(1, needs, bars, weight)


def is_transaction(shape: Shape) -> bool:
    """Return whether each command of a method is its own run."""
    return shape is _TRANSACTION


def request_shape(spans: Iterable[tuple[Shape, int]]) -> Shape:
    """Return the shape of a request from those of its spans, each with its number of commands."""
    runs = needs = weight = 0
    bars = BARS_ALL
    for shape, count in spans:
        if bars & shape.needs:
            runs += count if shape is _TRANSACTION else 1
            bars = shape.bars
        else:
            bars |= shape.bars
        needs |= shape.needs
        weight = max(weight, shape.weight)
    if runs > 1:
        needs, weight = _ALONE, limits.COMMANDS_PER_RUN * (runs - 1)
    return Shape(runs, needs, bars, weight)


def _bits(stages: Iterable[Stage]) -> int:
    return sum(_STAGE_BITS[stage] for stage in stages)
