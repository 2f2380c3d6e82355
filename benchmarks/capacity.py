"""Calculates what a replica needs for a load, from what was measured: prints one JSON object.

`python -m benchmarks.capacity --partitions 200000 --commands 5000 --members 2000`. Nothing is run.
Every figure is a base and one slope for each kind of load, and each of them names the result file
and the place in it that it comes from. docs/capacity.md explains the figures.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from functools import cache
from pathlib import Path
from typing import Any, Final, NamedTuple, TypeAlias

from coordinator.app.config import AUDIT_BYTES
from viewstamp.limits import (
    MIB,
    SNAPSHOT_COPIES,
    SNAPSHOT_JOURNAL_BYTES,
    SNAPSHOT_KEEP_DAILY,
    SNAPSHOT_KEEP_LAST,
)

RESULTS: Final = Path(__file__).parent / "results"
# Names in a result file, from outside to inside.
Place: TypeAlias = tuple[str, ...]

MILLION: Final = 1_000_000
# Of a new process, before the first command: what `benchmarks/snapshots.py` has no figure for.
NEW_PROCESS_MB: Final[Mapping[str, int]] = {
    "coordinator": 72,
    "streams": 55,
    "users": 55,
    "consumer_groups": 55,
}
# Files of a new coordinator: journal, superblock, sockets of services and of two other replicas.
NEW_COORDINATOR_FILES: Final = 40
SERVICE_FILES: Final = 20
SPARE: Final = 2.0
"""Memory limits have room for a second copy: a snapshot, an installation, a large answer."""


@dataclass(frozen=True, slots=True)
class ClusterLoad:
    """What a cluster has to carry: sizes, and rates per second; `command_bytes` is one command."""

    partitions: int = 0
    commands: float = 0.0
    unary_commands: float = 0.0
    offsets: float = 0.0
    members: int = 0
    connections: int = 0
    command_bytes: int = 256


class MeasuredSlope(NamedTuple):
    """The sum of some places of a result file, for so many units of a kind of load."""

    file: str
    places: tuple[Place, ...]
    units: float
    minus: float = 0.0

    @property
    def slope(self) -> float:
        """What one more unit costs."""
        found = result(self.file)
        total = sum(_at(found, place) for place in self.places)
        return (total - self.minus) / self.units


class Formula(NamedTuple):
    """One figure: what it is without a load, and what each unit of a field of ClusterLoad adds."""

    unit: str
    base: float
    slopes: Mapping[str, MeasuredSlope]

    def of(self, demand: ClusterLoad) -> float:
        """Return the figure."""
        added = [float(getattr(demand, name)) * each.slope for name, each in self.slopes.items()]
        return self.base + sum(added)


def _cpu_of(way: str) -> MeasuredSlope:
    """Return the processor time of all four processes for one command."""
    names = ("coordinator", "streams", "users", "consumer_groups")
    places = tuple(("medians", way, f"{name}_cpu_us", "wire") for name in names)
    return MeasuredSlope("commands_by_transport", places, MILLION)


def _memory_of(name: str) -> Formula:
    new_mb = NEW_PROCESS_MB[name]
    places = (("medians", "memory", f"{name}_mb"),)
    return Formula(
        "MB", new_mb, {"partitions": MeasuredSlope("snapshots", places, MILLION, new_mb)}
    )


def _of_snapshots(unit: str, *place: str) -> Formula:
    return Formula(unit, 0.0, {"partitions": MeasuredSlope("snapshots", (place,), MILLION)})


FORMULAS: Final[Mapping[str, Formula]] = {
    "cpu_cores": Formula(
        "cores",
        0.0,
        {
            "commands": _cpu_of("create_concurrent"),
            "unary_commands": _cpu_of("create_unary"),
            "offsets": MeasuredSlope(
                "offsets", (("steady, 10 offsets a command", "cpu_us_per_offset"),), MILLION
            ),
            "members": MeasuredSlope("members", (("cores", "alone"),), 10_000),
        },
    ),
    **{f"{name}_memory": _memory_of(name) for name in NEW_PROCESS_MB},
    "full_snapshot_time": _of_snapshots("s", "medians", "full", "seconds"),
    "full_snapshot_bytes": _of_snapshots("bytes", "medians", "full", "bytes"),
}
# Of a million partitions; how much of it is the start of the processes was not measured.
RESTART: Final = MeasuredSlope("snapshots", (("medians", "restart", "first_command_s"),), 1)


@cache
def result(name: str) -> Mapping[str, Any]:
    """Return a result file."""
    found: Mapping[str, Any] = json.loads((RESULTS / f"{name}.json").read_text())
    return found


def _at(found: Any, place: Place) -> float:
    for name in place:
        found = found[name]
    return float(found)


def capacity(demand: ClusterLoad) -> dict[str, dict[str, Any]]:
    """Return each figure of one replica, with its unit."""
    figures = {name: (formula.unit, formula.of(demand)) for name, formula in FORMULAS.items()}
    snapshot_bytes = figures["full_snapshot_bytes"][1]
    log_bytes = demand.command_bytes * (demand.commands + demand.unary_commands)
    figures |= {
        "memory_limit": (
            "MB",
            SPARE * sum(formula.of(demand) for name, formula in _memories().items()),
        ),
        "restart_time_at_most": ("s", RESTART.slope * max(1.0, demand.partitions / MILLION)),
        "disk": ("MB", _disk_bytes(snapshot_bytes) / MIB),
        "journal_written": ("bytes/s", log_bytes),
        "sent_to_each_backup": ("bytes/s", log_bytes),
        "coordinator_files": ("files", NEW_COORDINATOR_FILES + demand.connections),
        "service_files": ("files", SERVICE_FILES),
    }
    return {name: {"value": round(v, 3), "unit": unit} for name, (unit, v) in figures.items()}


def _memories() -> dict[str, Formula]:
    return {name: one for name, one in FORMULAS.items() if name.endswith("_memory")}


def _disk_bytes(snapshot_bytes: float) -> float:
    """Return what a data directory takes at most with the default flags.

    Each kept snapshot is counted as a full one; in truth most are layers on an older one. The
    journal may hold as much again until a snapshot is complete.
    """
    kept = SNAPSHOT_KEEP_LAST + SNAPSHOT_KEEP_DAILY + 1
    return 2 * SNAPSHOT_JOURNAL_BYTES + SNAPSHOT_COPIES * kept * snapshot_bytes + AUDIT_BYTES


def main(arguments: list[str] | None = None) -> None:
    """Print what a replica needs for the load that the flags say."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.capacity", description="What one replica needs for a load."
    )
    for field in fields(ClusterLoad):
        kind = int if isinstance(field.default, int) else float
        flag = f"--{field.name.replace('_', '-')}"
        parser.add_argument(flag, type=kind, default=field.default, help="default: %(default)s")
    options = parser.parse_args(arguments)
    negative = [name for name, value in vars(options).items() if value < 0]
    if negative:
        parser.error(f"--{negative[0].replace('_', '-')} is below 0: give 0 or more")
    demand = ClusterLoad(**vars(options))
    print(json.dumps({"demand": asdict(demand), "replica": capacity(demand)}, indent=1))


if __name__ == "__main__":
    main()
