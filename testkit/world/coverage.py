"""`python -m testkit.world.coverage`: which lines of the product no seed and no story runs.

Chunks of seeds run in processes of their own, under coverage.py. What a chunk ran is kept in a file
that is named by its seeds and by the code, so that a measurement that was interrupted goes on.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tomllib
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from testkit.campaigns import document
from testkit.campaigns.campaign import CHUNK_S_MAX, CHUNK_SEEDS
from testkit.campaigns.fingerprint import ROOT, fingerprint
from testkit.world.campaign import ENTRY
from testkit.world.reached import Reached, judge, listing, markdown
from testkit.world.unreached import TABLE

PRODUCT: Final = "coordinator"
MARKER: Final = "coverage"
STORIES: Final = "tests/testkit/world/stories"
STORY_ENTRY: Final = "testkit.world.stories"
LISTING: Final = "unreached.md"
_FINGERPRINT_CHARACTERS: Final = 12
_FAILED: Final = ".failed.txt"


class NothingMeasured(Exception):  # noqa: N818 - it says what happened.
    """Coverage.py did not do what it was asked for; the text is what it said."""


@dataclass(frozen=True)
class Measurement:
    """Runs `module` with seeds, measures the packages below `source`, and keeps it in `state`."""

    state: Path
    root: Path = ROOT
    source: str = PRODUCT
    module: str = "testkit.world"
    stories: Sequence[Path] = ()
    """Files of stories that are played, too."""
    code: str = ""
    """What tells this code from any other."""

    # --- Chunks ---

    def run(self, seeds: range, processes: int) -> list[Path]:
        """Run what is not done yet; return the data of all chunks."""
        self.state.mkdir(parents=True, exist_ok=True)
        self._configuration.write_text(_settings(self.root))
        chunks = [seeds[at : at + CHUNK_SEEDS] for at in range(0, len(seeds), CHUNK_SEEDS)]
        commands = [(f"seeds-{each[0]}-{each[-1]}", self._seeds(each)) for each in chunks]
        if self.stories:
            commands.append(("stories", (f"{self.module}.stories", *map(str, self.stories))))
        with ThreadPoolExecutor(processes) as pool:
            return list(pool.map(self._run_chunk, *zip(*commands, strict=True)))

    def _seeds(self, seeds: range) -> tuple[str, ...]:
        return (self.module, "--seed", str(seeds[0]), "--count", str(len(seeds)))

    def _run_chunk(self, name: str, command: Sequence[str]) -> Path:
        """Run a chunk unless it is done; the file has its name only once all of it is there."""
        data = self.state.absolute() / f"{name}-{self.code[:_FINGERPRINT_CHARACTERS]}"
        if data.exists():
            return data
        measured, told = data.with_suffix(".part"), data.with_suffix(_FAILED)
        ended = self._coverage("run", measured, ("--source", self.source, "-m", *command))
        if not measured.exists():
            raise NothingMeasured(ended.stdout + ended.stderr)
        if ended.returncode:
            told.write_text(ended.stdout + ended.stderr)
        measured.replace(data)
        print(f"{name}: {'FAILED' if ended.returncode else 'done'}")
        return data

    def failures(self, chunks: Sequence[Path]) -> list[Path]:
        """Return what was told of the chunks in which a seed failed."""
        told = [chunk.with_suffix(_FAILED) for chunk in chunks]
        return [each for each in told if each.exists()]

    # --- The whole ---

    def combined(self, chunks: Sequence[Path]) -> dict[str, Any]:
        """Return what coverage.py says of all chunks together."""
        whole, written = self.state.absolute() / "combined", self.state.absolute() / "combined.json"
        self._demand("combine", whole, ("--keep", *map(str, chunks)))
        self._demand("json", whole, ("-o", str(written)))
        result: dict[str, Any] = json.loads(written.read_text())
        return result

    def _demand(self, verb: str, data: Path, arguments: Sequence[str]) -> None:
        ended = self._coverage(verb, data, arguments)
        if ended.returncode:
            raise NothingMeasured(ended.stdout + ended.stderr)

    def _coverage(
        self, verb: str, data: Path, arguments: Sequence[str]
    ) -> subprocess.CompletedProcess[str]:
        """Run coverage.py where the sources are."""
        settings = ("--rcfile", str(self._configuration), "--data-file", str(data))
        return subprocess.run(
            [sys.executable, "-m", "coverage", verb, *settings, *arguments],
            cwd=self.root,
            capture_output=True,
            text=True,
            timeout=CHUNK_S_MAX,
            check=False,
        )

    @property
    def _configuration(self) -> Path:
        return self.state.absolute() / "coverage.ini"


def _settings(root: Path) -> str:
    """Return settings of coverage.py: all files, without the lines that the gate leaves out."""
    project = tomllib.loads((root / "pyproject.toml").read_text())
    excluded = project["tool"]["coverage"]["report"]["exclude_also"]
    pattern_lines = "".join(f"    {pattern}\n" for pattern in excluded)
    return f"[run]\nrelative_files = true\n[report]\nexclude_also =\n{pattern_lines}"


def report(reached: Reached, failures: Sequence[Path]) -> int:
    """Print what seeds run; return the exit status."""
    print(markdown(reached))
    for gap in reached.not_named:
        print(f"not named: {gap.place}: {len(gap.lines)} lines")
    for place in reached.idle_places:
        print(f"names nothing that is not run: {place}")
    for told in failures:
        print(f"a seed failed: {told}")
    return 1 if reached.not_named or reached.idle_places or failures else 0


def main(arguments: Sequence[str]) -> int:
    """Measure seeds; return 1 if a line is neither run nor named, or a seed failed."""
    parser = argparse.ArgumentParser(prog="python -m testkit.world.coverage", description=__doc__)
    parser.add_argument("--seed", type=int, default=1, help="the first seed")
    parser.add_argument("--count", type=int, default=200, help="how many seeds")
    parser.add_argument("--stories", type=Path, default=ROOT / STORIES, help="what is played, too")
    parser.add_argument("--processes", type=int, default=1)
    parser.add_argument("--state", type=Path, required=True, help="a folder for what chunks ran")
    parser.add_argument("--markdown", type=Path, help="the page that gets the tables")
    chosen = parser.parse_args(arguments)
    stories = sorted(chosen.stories.glob("*.txt"))
    measurement = Measurement(chosen.state, stories=stories, code=fingerprint(ENTRY, STORY_ENTRY))
    chunks = measurement.run(range(chosen.seed, chosen.seed + chosen.count), chosen.processes)
    reached = judge(measurement.combined(chunks), TABLE)
    (chosen.state / LISTING).write_text(listing(reached))
    if chosen.markdown is not None:
        document.write(chosen.markdown, MARKER, markdown(reached))
    return report(reached, measurement.failures(chunks))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
