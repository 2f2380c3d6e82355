"""`python -m testkit.model`: TLC visits every state of some small clusters."""

from __future__ import annotations

import argparse
import sys
from typing import Final

from testkit.model.bounds import TlaBounds
from testkit.model.checker import TlcFailed, check

MODELS: Final = {
    "view changes": TlaBounds(view_max=2, batches=2),
    "crashes": TlaBounds(view_max=2, restarts=1, lazy_journal="primary"),
    "writes that take time": TlaBounds(restarts=1, lazy_journal="all", lazy_superblock=True),
    "a damaged record": TlaBounds(view_max=2, damaged_records=1),
    "a lost disk": TlaBounds(view_max=2, lost_disks=1),
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
}
"""What `make model-long` checks as well, in hours."""

HEADER: Final = f"{'cluster':<32} {'states':>12} {'depth':>6} {'seconds':>8}  result"


def main(arguments: list[str]) -> int:
    """Check the models; returns 0 if everything holds in each."""
    parser = argparse.ArgumentParser(prog="python -m testkit.model")
    parser.add_argument("--long", action="store_true", help="check the larger clusters")
    parser.add_argument("--only", nargs="*", help="names of clusters")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--seconds-max", type=int, default=6 * 3600, help="for each cluster")
    chosen = parser.parse_args(arguments)
    models = {**MODELS, **LONG_MODELS} if chosen.only else LONG_MODELS if chosen.long else MODELS
    names = [name for name in models if not chosen.only or name in chosen.only]
    print(HEADER)
    return 1 if [name for name in names if not holds(name, models[name], chosen)] else 0


def holds(name: str, bounds: TlaBounds, chosen: argparse.Namespace) -> bool:
    """Check one model, print what came of it, and return whether everything holds."""
    try:
        verdict = check(bounds, workers=chosen.workers, seconds_max=chosen.seconds_max)
    except TlcFailed as error:
        print(f"{name:<32} {error}")
        return False
    result = f"{verdict.violated} does not hold" if verdict.violated else "everything holds"
    print(f"{name:<32} {verdict.states:>12,} {verdict.depth:>6} {verdict.seconds:>8.0f}  {result}")
    if verdict.violated:
        print(verdict.trace)
    return not verdict.violated


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
