"""Runs one benchmark on two builds of Viewstamp in turns: prints one JSON object.

`python -m benchmarks.builds --before COMMIT [--rounds N] BENCHMARK [OPTION ...]`, for example
`python -m benchmarks.builds --before v1 benchmarks.commands --without-etcd --seconds 3`. The
commit is checked out beside this tree. Each round runs the benchmark once in either tree, and the
order changes from round to round, so that other load on the machine affects both. A ratio is this
tree's figure divided by the other's, in one round. Progress goes to stderr.

`--compiled` compares with a tree whose HTTP/2 is compiled (`benchmarks.compiled`) in place of this
one: it is checked out at HEAD, too.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from statistics import median, quantiles
from typing import Any, Final

from benchmarks.compiled import compile_in

ROUNDS: Final = 5
TREE: Final = Path(__file__).resolve().parent.parent

Medians = Mapping[str, Mapping[str, float]]  # figures by their name, by workload


@dataclass(frozen=True, slots=True)
class Round:
    """The medians of both builds, measured one after the other."""

    before: Medians
    after: Medians


def compared(rounds: Sequence[Round]) -> list[dict[str, Any]]:
    """Return a row for each figure that every run of both builds has: medians and ratios."""
    return [
        row(workload, figure, rounds)
        for workload, figures in rounds[0].before.items()
        for figure in figures
        if all(_has(run, workload, figure) for each in rounds for run in (each.before, each.after))
    ]


def row(workload: str, figure: str, rounds: Sequence[Round]) -> dict[str, Any]:
    """Return one figure of one workload: both medians, and the ratios of the rounds."""
    pairs = [(each.before[workload][figure], each.after[workload][figure]) for each in rounds]
    ratios = sorted(after / before for before, after in pairs if before)
    return {
        "workload": workload,
        "figure": figure,
        "before": median(before for before, _ in pairs),
        "after": median(after for _, after in pairs),
        "ratio": round(median(ratios), 3) if ratios else None,
        "quartiles": [round(cut, 3) for cut in _quartiles(ratios)],
    }


def in_order(number: int) -> tuple[str, str]:
    """Return which build of a round is measured first, and which second."""
    return ("before", "after") if number % 2 == 0 else ("after", "before")


def measure(tree: Path, command: Sequence[str]) -> Medians:
    """Run a benchmark in a tree and return its medians. Raises RuntimeError if it fails."""
    environment = os.environ | {"PYTHONPATH": str(tree)}
    line = [sys.executable, "-m", *command]
    done = subprocess.run(line, cwd=tree, env=environment, stdout=subprocess.PIPE, check=False)
    if done.returncode:
        raise RuntimeError(f"`{' '.join(command)}` failed in {tree}, see above")
    return flat(json.loads(done.stdout)["medians"])


def flat(medians: Mapping[str, Any]) -> Medians:
    """Return figures by workload, where some benchmarks divide a workload once more."""
    found: dict[str, Mapping[str, float]] = {}
    for workload, figures in medians.items():
        if all(isinstance(each, Mapping) for each in figures.values()):
            found |= {f"{workload}, {part}": each for part, each in figures.items()}
        else:
            found[workload] = figures
    return found


@contextmanager
def checked_out(commit: str) -> Iterator[Path]:
    """Check a commit out into a temporary directory, which is removed at the end."""
    with tempfile.TemporaryDirectory(prefix="viewstamp-build-") as name:
        tree = Path(name) / "tree"
        _git("worktree", "add", "--quiet", "--detach", str(tree), commit)
        try:
            yield tree
        finally:
            _git("worktree", "remove", "--force", str(tree))


@contextmanager
def compiled() -> Iterator[Path]:
    """Check HEAD out into a temporary directory, and compile there. Raises RuntimeError."""
    with checked_out("HEAD") as tree:
        print("compiling", file=sys.stderr, flush=True)
        compile_in(tree)
        yield tree


def run(
    before: str, count: int, command: Sequence[str], after: AbstractContextManager[Path]
) -> dict[str, Any]:
    """Measure both builds in rounds, and return what follows from the figures."""
    rounds: list[Round] = []
    with checked_out(before) as earlier, after as later:
        trees = {"before": earlier, "after": later}
        for number in range(count):
            found = {}
            for build in in_order(number):
                print(f"round {number + 1} of {count}: {build}", file=sys.stderr, flush=True)
                found[build] = measure(trees[build], command)
            rounds.append(Round(found["before"], found["after"]))
    commits = {"before": _git("rev-parse", before), "after": _git("rev-parse", "HEAD")}
    return {"commits": commits, "command": list(command), "figures": compared(rounds)}


def parse(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """Return the options."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.builds", description=__doc__)
    add = parser.add_argument
    add("--before", required=True, metavar="COMMIT", help="the build to compare this tree with")
    add("--compiled", action="store_true", help="compare with compiled HTTP/2, not with this tree")
    add("--rounds", type=int, default=ROUNDS, help=f"pairs of runs (default {ROUNDS})")
    add("benchmark", nargs=argparse.REMAINDER, help="a module that prints medians, its options")
    options = parser.parse_args(arguments)
    if not options.benchmark:
        parser.error("name the benchmark: for example `benchmarks.commands --without-etcd`")
    if options.rounds < 1:
        parser.error(f"--rounds is {options.rounds}: it must be at least 1")
    return options


def _has(medians: Medians, workload: str, figure: str) -> bool:
    return figure in medians.get(workload, {})


def _quartiles(ratios: Sequence[float]) -> Sequence[float]:
    if len(ratios) < 2:
        return ratios
    first, _, third = quantiles(ratios, n=4, method="inclusive")
    return first, third


def _git(*arguments: str) -> str:
    done = subprocess.run(
        ["git", *arguments], cwd=TREE, check=True, stdout=subprocess.PIPE, text=True
    )
    return done.stdout.strip()


def main() -> int:
    """Measure and print."""
    options = parse()
    after = compiled() if options.compiled else nullcontext(TREE)
    print(json.dumps(run(options.before, options.rounds, options.benchmark, after), indent=2))
    return 0


if __name__ == "__main__":
    sys.exit(main())
