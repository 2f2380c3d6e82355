"""`python -m past.founding`: what `viewstamp restore` runs, and programs read.

The one argument is a JSON object with the fields of `Wanted` and `NewCluster`, and `dry_run`.
Each line of the output is a JSON object: {"step", "done", "total"} while it goes on, and last
{"report"} or {"reason", "message", "next_step", "is_usage"}. Exit code: 0 with a report, 1 without.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any, Final

from coordinator.journal.errors import JournalError
from coordinator.mux.entities import RestoreError
from coordinator.replica.start import WrongDirectoryError
from coordinator.snapshot.errors import SnapshotStorageError
from coordinator.storage import DirectoryInUse
from past.founding.directories import NewCluster
from past.founding.remains import Wanted
from past.founding.restore import restore
from services.runtime.installing import SectionContentsError
from viewstamp.files_error import FilesError
from viewstamp.format import FormatError

# Between two lines of progress.
PROGRESS_INTERVAL_S: Final = 0.1
_CANNOT_WRITE: Final = (
    JournalError,
    SnapshotStorageError,
    WrongDirectoryError,
    DirectoryInUse,
    FormatError,
    RestoreError,
    SectionContentsError,
)


class _Teller:
    """Prints progress, not too often, but the end of each step."""

    def __init__(self) -> None:
        self._told_s = 0.0

    def __call__(self, step: str, done: int, total: int) -> None:
        now_s = time.monotonic()
        if done == total or now_s - self._told_s >= PROGRESS_INTERVAL_S:
            self._told_s = now_s
            _print({"step": step, "done": done, "total": total})


def main(arguments: list[str] | None = None) -> int:
    """Restore, and return the exit code."""
    (text,) = sys.argv[1:] if arguments is None else arguments
    asked = json.loads(text)
    wanted = Wanted(
        source=Path(asked["source"]),
        copies=tuple(map(Path, asked["copies"])),
        generation=asked["generation"],
        archive=None if asked["archive"] is None else Path(asked["archive"]),
        to_revision=asked["to_revision"],
        to_time_us=asked["to_time_us"],
        accept_gaps=asked["accept_gaps"],
        is_staged=asked.get("is_staged", False),
    )
    new = NewCluster(
        path=Path(asked["into"]).absolute(),
        replica_count=asked["replicas"],
        cluster_id=bytes.fromhex(asked["cluster_id"]),
        only_replica=asked["only_replica"],
        copies=tuple(Path(path).absolute() for path in asked["snapshot_directories"]),
    )
    try:
        report = restore(wanted, new, _Teller(), dry_run=asked["dry_run"])
    except FilesError as error:
        return _failed(error.reason, error.message, error.next_step, is_usage=error.is_usage)
    except _CANNOT_WRITE as error:
        return _failed("CANNOT_WRITE", str(error), "nothing was founded")
    except OSError as error:
        return _failed("CANNOT_USE_FILE", str(error), "check the directory and its permissions")
    _print({"report": report.to_json()})
    return 0


def _failed(reason: str, message: str, next_step: str, *, is_usage: bool = False) -> int:
    _print({"reason": reason, "message": message, "next_step": next_step, "is_usage": is_usage})
    return 1


def _print(line: dict[str, Any]) -> None:
    sys.stdout.write(json.dumps(line) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
