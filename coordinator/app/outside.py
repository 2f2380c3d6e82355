"""What a coordinator uses of its process and its machine, beside disk, gRPC and clocks."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from coordinator.history.process import PastLauncher, start_past
from coordinator.snapshot.store import rebuild
from viewstamp.audit.log import AuditLog, open_log
from viewstamp.snapshots.catalog_view import CatalogView
from viewstamp.worker_thread import DaemonThread, WorkerThread


def write_ready_file(path: Path, ready: Mapping[str, Any]) -> None:
    """Say to tools on this machine where the replica serves. Raises OSError."""
    path.parent.mkdir(mode=0o700, exist_ok=True)
    temporary = path.with_suffix(".tmp")
    temporary.write_text(json.dumps(ready) + "\n")
    temporary.replace(path)


def remove_ready_file(path: Path) -> None:
    """Take back what `write_ready_file` said, if it said anything. Raises OSError."""
    path.unlink(missing_ok=True)


@dataclass(frozen=True, slots=True)
class Outside:
    """The thread of the journal, the process of the past, and files on which nothing in here rests:
    two for tools, and the audit log."""

    make_thread: Callable[[str], WorkerThread] = DaemonThread
    write_ready: Callable[[Path, Mapping[str, Any]], None] = write_ready_file
    remove_ready: Callable[[Path], None] = remove_ready_file
    write_view: Callable[[Path, CatalogView], Awaitable[None]] = rebuild
    open_audit: Callable[[Path, int], AuditLog] = open_log
    launch_past: PastLauncher = start_past


OPERATING_SYSTEM = Outside()
