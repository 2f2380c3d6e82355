"""Processes that run seeds, and end with whoever started them."""

from __future__ import annotations

import multiprocessing
import os
import threading
from concurrent.futures import ProcessPoolExecutor
from typing import Final

EXIT_ORPHANED: Final = 3


def pool(processes: int) -> ProcessPoolExecutor:
    """Return so many processes. Spawned, not forked: a fork of a process that has threads (gRPC,
    pytest-xdist) may hang."""
    context = multiprocessing.get_context("spawn")
    return ProcessPoolExecutor(processes, context, initializer=_end_with_the_parent)


def _end_with_the_parent() -> None:
    """End with the parent: the seeds of a killed campaign would go on for an hour."""
    threading.Thread(target=_wait_for_its_end, daemon=True).start()


def _wait_for_its_end() -> None:
    parent = multiprocessing.parent_process()
    assert parent is not None, "a worker has a parent"
    parent.join()
    os._exit(EXIT_ORPHANED)
