"""Runs plants one after the other, two at a time, and continues where it was interrupted."""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import as_completed
from dataclasses import asdict, dataclass
from pathlib import Path

from testkit.campaigns import document
from testkit.campaigns.workers import pool
from testkit.plants.verdict import PlantedBug, Verdict, key, markdown, problem


@dataclass(frozen=True, slots=True)
class PlantCampaign:
    """All plants of a simulator.

    `run` runs the plant of a key, in another process; `code` tells the code of a seed from any
    other. `block` names the tables in the document.
    """

    program: str
    plants: Sequence[PlantedBug]
    run: Callable[[str], Verdict]
    code: Callable[[], str]
    block: str

    def main(self, arguments: list[str]) -> int:
        """Run the plants; return 0 if each is found, or not, as its table says."""
        chosen = self._parser().parse_args(arguments)
        plants = [
            plant
            for plant in self.plants
            if not chosen.only or {plant.name, plant.bug.__name__} & set(chosen.only)
        ]
        found: dict[str, Verdict] = {}
        problems: list[str] = []
        for plant, verdict in self.verdicts(plants, chosen.processes, chosen.state):
            found[key(plant)] = verdict
            came = f"seed {verdict.seed}: {verdict.failure}" if verdict.found_by else "not found"
            line = f"{key(plant):44} {verdict.seeds:>4} seeds {verdict.took_s:>5.0f} s"
            print(f"{line}  {came[:140]}", flush=True)
            problems += [what for what in [problem(plant, verdict)] if what is not None]
        if chosen.table is not None:
            document.write(chosen.table, self.block, markdown(self.plants, found))
        print("\n".join(problems) or f"{len(found)} plants, each as its table says")
        return 1 if problems else 0

    def _parser(self) -> argparse.ArgumentParser:
        parser = argparse.ArgumentParser(prog=self.program)
        parser.add_argument("--only", nargs="*", help="pitfalls, checkers, or names of bugs")
        parser.add_argument("--processes", type=int, default=1)
        parser.add_argument("--state", type=Path, help="where verdicts are kept")
        parser.add_argument("--table", type=Path, help="where to write the tables, as markdown")
        return parser

    def verdicts(
        self, plants: Sequence[PlantedBug], processes: int, state: Path | None
    ) -> Iterator[tuple[PlantedBug, Verdict]]:
        """Run what the state file does not know yet; yield each as it is done."""
        known = self._load(state)
        left = {key(plant): plant for plant in plants}
        for name in [name for name in left if name in known]:
            yield left.pop(name), known[name]
        with pool(processes) as workers:
            running = {workers.submit(self.run, name): name for name in left}
            for done in as_completed(running):
                verdict = done.result()
                self._save(state, running[done], verdict)
                yield left[running[done]], verdict

    def _load(self, state: Path | None) -> dict[str, Verdict]:
        """Return the verdicts found with exactly this code."""
        if state is None or not state.exists():
            return {}
        kept = [json.loads(line) for line in state.read_text().splitlines()]
        code = self.code()
        return {line["plant"]: Verdict(**line["verdict"]) for line in kept if line["code"] == code}

    def _save(self, state: Path | None, name: str, verdict: Verdict) -> None:
        """Add what was found."""
        if state is not None:
            with state.open("a") as file:
                line = {"code": self.code(), "plant": name, "verdict": asdict(verdict)}
                file.write(json.dumps(line) + "\n")
