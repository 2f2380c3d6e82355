"""A coordinator that is recorded: `python -m testkit.model.recording_coordinator FLAGS...`.

It is the shipped program. After each step of its core, and before the effects of the step, it
appends what the step changed to a file in its data directory. The times are those of the monotonic
clock, which all processes of a machine share. A message leaves after the record of the step that
sent it, so the order of times is one in which every message was sent before it was received.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final

from coordinator.app.main import main
from testkit.model.recorder import RunRecorder, SeenEntry, SeenReplica, StepWatch, listening
from testkit.other_coordinators import run_instead
from viewstamp.cluster import Program

RECORD: Final = "steps.jsonl"
_DIRECTORY_FLAG: Final = "--data-directory"


def recorded(_: int, program: Program) -> Program:
    """Return this program in the place of a coordinator; other programs stay as they are."""
    return run_instead(program, "testkit.model.recording_coordinator")


class StepFile:
    """Appends steps to a file. A line is written at once, so a kill loses none."""

    def __init__(self, path: Path) -> None:
        self._descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        self._watch = StepWatch()
        self._told = 0

    def stepped(self, core: Any, event: Any) -> None:
        """Append what a step changed."""
        seen = self._watch.stepped(core, event)
        if seen is None:
            return
        entries = list(self._watch.entries.values())[self._told :]
        self._told += len(entries)
        self.append(seen, entries)

    def append(self, seen: SeenReplica, entries: list[SeenEntry]) -> None:
        """Append what a step changed, and the entries that no line has had."""
        line = {
            "time_ns": time.monotonic_ns(),
            "seen": asdict(seen),
            "entries": [asdict(entry) for entry in entries],
        }
        os.write(self._descriptor, json.dumps(line).encode() + b"\n")


def merged(paths: list[Path]) -> RunRecorder:
    """Return the run whose replicas wrote these files."""
    lines = sorted(
        (line for path in paths for line in _lines(path)), key=lambda line: int(line["time_ns"])
    )
    recorder = RunRecorder()
    for line in lines:
        for entry in line["entries"]:
            recorder.entries.setdefault(entry["checksum"], SeenEntry(**entry))
        seen = line["seen"]
        recorder.seen.append(SeenReplica(**{**seen, "durable": tuple(seen["durable"])}))
    return recorder


def _lines(path: Path) -> Iterator[dict[str, Any]]:
    for text in path.read_text().splitlines():
        yield json.loads(text)


if __name__ == "__main__":
    directory = Path(sys.argv[sys.argv.index(_DIRECTORY_FLAG) + 1])
    with listening(StepFile(directory / RECORD).stepped):
        sys.exit(main(sys.argv[1:]))
