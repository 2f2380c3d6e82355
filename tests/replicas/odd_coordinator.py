"""Coordinators of other builds: `python -m tests.replicas.odd_coordinator KIND FLAGS...`."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from itertools import count
from pathlib import Path
from types import MappingProxyType
from typing import Final

from coordinator.app.main import main
from coordinator.peers import peers
from coordinator.peers.hello import DIGEST_BYTES, WIRE_VERSION
from coordinator.peers.outbox import Outbox, OutgoingMessage
from coordinator.snapshot import values
from coordinator.vsr.messages import PrepareMessage
from viewstamp import limits

NEXT_LEVEL: Final = limits.FEATURE_LEVEL_MAX + 1
# One of so many prepares leaves with a flipped bit.
CORRUPTED_PREPARES: Final = 5
# While this file exists above a written file, its sync does not return.
HANGS: Final = "the-disk-hangs"


def newer_wire() -> None:
    """Speak the next version of the protocol between replicas."""
    setattr(peers, "WIRE_VERSION", WIRE_VERSION + 1)  # noqa: B010


def older_wire() -> None:
    """Speak a version before the first."""
    setattr(peers, "WIRE_VERSION", WIRE_VERSION - 1)  # noqa: B010


def know_the_next_level() -> None:
    """Let this process know one more feature level, in every module that has been imported.

    A list of modules would miss those that came later, or moved.
    """
    for module in [found for found in sys.modules.values() if hasattr(found, "FEATURE_LEVEL_MAX")]:
        setattr(module, "FEATURE_LEVEL_MAX", NEXT_LEVEL)  # noqa: B010


def newer_level() -> None:
    """Know one more feature level, and bootstrap clusters at it; sections are those of the last."""
    know_the_next_level()
    tasks = {**values.TASKS_BY_FEATURE_LEVEL, NEXT_LEVEL: values.expected_tasks(NEXT_LEVEL - 1)}
    setattr(values, "TASKS_BY_FEATURE_LEVEL", tasks)  # noqa: B010


def other_limits() -> None:
    """Report other limits for commands than the other replicas."""
    setattr(peers, "configuration_digest", lambda _: bytes(DIGEST_BYTES))  # noqa: B010


def corrupting() -> None:
    """Flip a bit of some prepares as they leave."""
    put, numbers = Outbox.put, count(1)

    def put_some_corrupted(self: Outbox, outgoing: OutgoingMessage) -> None:
        if outgoing.kind is PrepareMessage and next(numbers) % CORRUPTED_PREPARES == 0:
            data = outgoing.data[:-1] + bytes([outgoing.data[-1] ^ 1])
            outgoing = replace(outgoing, data=data)
        put(self, outgoing)

    Outbox.put = put_some_corrupted  # type: ignore[method-assign]


def hanging_disk() -> None:
    """Let the disk hang on request, in the middle of a sync."""
    sync = os.fdatasync

    def sync_later(descriptor: int) -> None:
        path = Path(f"/proc/self/fd/{descriptor}").readlink()
        while any((parent / HANGS).exists() for parent in path.parents):
            time.sleep(0.05)
        sync(descriptor)

    setattr(os, "fdatasync", sync_later)  # noqa: B010


KINDS: Final[Mapping[str, Callable[[], None]]] = MappingProxyType(
    {
        kind.__name__: kind
        for kind in (newer_wire, older_wire, newer_level, other_limits, corrupting, hanging_disk)
    }
)

if __name__ == "__main__":
    KINDS[sys.argv[1]]()
    sys.exit(main(sys.argv[2:]))
