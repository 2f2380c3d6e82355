"""`python -m testkit.model`: TLC visits every state of some small clusters."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Final

from testkit.campaigns import document
from testkit.model.bounds import TlaBounds
from testkit.model.checker import TlcFailed, TlcVerdict
from testkit.model.results import checked

MODELS: Final = {
    "view changes": TlaBounds(view_max=2, batches=2),
    "crashes": TlaBounds(view_max=2, restarts=1, lazy_journal="primary"),
    "writes that take time": TlaBounds(restarts=1, lazy_journal="all", lazy_superblock=True),
    "a damaged record": TlaBounds(view_max=2, damaged_records=1),
    "a journal that lost its end": TlaBounds(view_max=2, lost_tails=1),
    "blank replicas": TlaBounds(view_max=2, blank_replicas=2),
    "a lost disk": TlaBounds(view_max=2, lost_disks=1),
    "a vote is given": TlaBounds(change="two to three", lost_disks=1),
    "a voter is removed": TlaBounds(change="three to two", restarts=1, lazy_journal="primary"),
    "a newcomer leads": TlaBounds(change="newcomer leads", lost_disks=1),
}
"""What `make model` checks, in minutes."""

LONG_MODELS: Final = {
    "long view changes": TlaBounds(view_max=3, batches=2, pipeline=2),
    "long crashes": TlaBounds(view_max=2, batches=2, restarts=1, lazy_journal="primary"),
    "long writes that take time": TlaBounds(
        view_max=2, restarts=1, lazy_journal="all", lazy_superblock=True
    ),
    "a damaged record and a crash": TlaBounds(view_max=2, restarts=1, damaged_records=1),
    "a lost disk, four views": TlaBounds(view_max=3, lost_disks=1),
    "a voter is removed, more views": TlaBounds(change="three to two", view_max=2, batches=2),
    "a vote is given and one is taken": TlaBounds(change="two to three to two"),
    "four voters become three": TlaBounds(replica_count=4, change="four to three"),
    "three voters become four": TlaBounds(replica_count=4, change="three to four"),
}
"""What `make model-long` checks as well, in hours."""

NOT_RUN: Final = "not run"
HOLDS: Final = "everything holds"
COLUMNS: Final = ("cluster", "states", "depth", "seconds", "processor seconds", "result")
HEADER: Final = f"{'cluster':<32} {'states':>12} {'depth':>6} {'seconds':>8} {'used':>8}  result"


def main(arguments: list[str]) -> int:
    """Check the models; returns 0 if everything holds in each."""
    parser = argparse.ArgumentParser(prog="python -m testkit.model")
    parser.add_argument("--long", action="store_true", help="check the larger clusters")
    parser.add_argument("--only", nargs="*", help="names of clusters")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--results", type=Path, help="a file: go on after what it has")
    parser.add_argument("--table", type=Path, help="where to write the table, as markdown")
    parser.add_argument("--seconds-max", type=int, default=6 * 3600, help="for each cluster")
    chosen = parser.parse_args(arguments)
    models = {**MODELS, **LONG_MODELS} if chosen.only else LONG_MODELS if chosen.long else MODELS
    names = [name for name in models if not chosen.only or name in chosen.only]
    print(HEADER)
    found = dict.fromkeys(models, NOT_RUN) | {
        name: verdict_or_why(name, models[name], chosen) for name in names
    }
    if chosen.table is not None:
        document.write(chosen.table, "models", markdown(found))
    return 0 if all(result_of(found[name]) == HOLDS for name in names) else 1


def verdict_or_why(name: str, bounds: TlaBounds, chosen: argparse.Namespace) -> TlcVerdict | str:
    """Check one model, print what came of it, and return the verdict, or why there is none."""
    try:
        verdict = checked(
            chosen.results, bounds, workers=chosen.workers, seconds_max=chosen.seconds_max
        )
    except TlcFailed as error:
        print(f"{name:<32} {error}", flush=True)
        return f"{error}".splitlines()[0]
    print(
        f"{name:<32} {verdict.states:>12,} {verdict.depth:>6} {verdict.seconds:>8.0f} "
        f"{verdict.processor_seconds:>8.0f}  {result_of(verdict)}",
        flush=True,
    )
    if verdict.violated:
        print(verdict.trace, flush=True)
    return verdict


def result_of(found: TlcVerdict | str) -> str:
    """Return whether everything holds, in words."""
    if isinstance(found, str):
        return found
    return f"{found.violated} does not hold" if found.violated else HOLDS


def markdown(found: dict[str, TlcVerdict | str]) -> str:
    """Return the table of `docs/tla/README.md`."""
    lines = [f"| {' | '.join(COLUMNS)} |", f"|{'---|' * len(COLUMNS)}"]
    for name, each in found.items():
        figures = ("", "", "", "")
        if isinstance(each, TlcVerdict):
            times = (f"{each.seconds:.0f}", f"{each.processor_seconds:.0f}")
            figures = (f"{each.states:,}", f"{each.depth}", *times)
        lines.append(f"| {' | '.join((name, *figures, result_of(each)))} |")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
