"""Measures both kinds of journals: prints one JSON object on stdout, its progress on stderr.

`python -m benchmarks.journals [--directory DIR] [--rounds N] [--entries N] > FILE`.
Each round makes both journals anew on the same disk and measures them in turns, the order reversed
from round to round, so that whatever slows the machine down slows both. Every append returns after
its fsync. The journals are the product's, without a replica around them.

* `append`: entries a second, alone, in groups, and of the largest size, with the log freed as
  snapshots would free it.
* `slowest_ms`: the slowest and the thousandth slowest of the lone appends, with the making of
  segments or the raising of floors among them.
* `recovery_s`: opening a journal that holds `held_mib` of entries.
* `bytes`: on the disk when new, and at most.
* `entries_without_a_snapshot`: how many entries of the largest size, and of a small one, a journal
  takes until it refuses, where no snapshot completes. Segments take what the disk has.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any, Final

from benchmarks.commands import machine
from coordinator.journal.interface import ReplicaJournal
from coordinator.journal.journal import Journal
from coordinator.journal.plan import JournalIdentity
from coordinator.journal.ring_journal import RING_BYTES, RingJournal
from coordinator.replica.ports import JournalRoom
from coordinator.replica.ring_room import RingWatch
from coordinator.storage import FileStorage
from viewstamp.format.prepare import NO_PARENT, SealedPrepare, seal
from viewstamp.limits import MIB, PREPARE_BODY_BYTES_MAX

ROUNDS: Final = 5
ENTRIES: Final = 2_000
GROUP: Final = 32
SMALL_BYTES: Final = 300
LARGE_ENTRIES: Final = 48
# The log is freed whenever so many entries are behind a snapshot: half of what a ring holds.
SNAPSHOT_ENTRIES: Final = 6_000
SNAPSHOT_LARGE_ENTRIES: Final = 24
HELD_ENTRIES: Final = 8_000
CLUSTER_ID: Final = bytes(range(16))
SEGMENTS, RING = "segments", "ring"


@dataclass(frozen=True, slots=True)
class MeasuredKind:
    """How journals of one kind are made and opened in a directory."""

    name: str
    create: Callable[[str], ReplicaJournal]
    reopen: Callable[[str], ReplicaJournal]


def _create_segments(directory: str) -> ReplicaJournal:
    made = {"cluster_id": CLUSTER_ID, "replica_id": 0, "replica_count": 3}
    return Journal.create(FileStorage(), directory, **made)[0]  # type: ignore[arg-type]


def _create_ring(directory: str) -> ReplicaJournal:
    made = {"cluster_id": CLUSTER_ID, "replica_id": 0, "replica_count": 3}
    return RingJournal.create(FileStorage(), directory, **made)[0]  # type: ignore[arg-type]


def _reopen_segments(directory: str) -> ReplicaJournal:
    return Journal.open(
        FileStorage(),
        directory,
        cluster_id=CLUSTER_ID,
        replica_id=0,
        replica_count=3,
        commit_max=0,
        log_view=1,
    )[0]


def _reopen_ring(directory: str) -> ReplicaJournal:
    identity = JournalIdentity(CLUSTER_ID, 0, 3, 0, 1, 1)
    return RingJournal.open(FileStorage(), directory, identity)[0]


KINDS: Final = (
    MeasuredKind(SEGMENTS, _create_segments, _reopen_segments),
    MeasuredKind(RING, _create_ring, _reopen_ring),
)


class EndlessChain:
    """Prepares one after another, of any size."""

    def __init__(self) -> None:
        self.op = 0
        self._parent = NO_PARENT

    def take(self, count: int, body_bytes: int) -> list[SealedPrepare]:
        """Return the next prepares."""
        return [self._next(body_bytes) for _ in range(count)]

    def _next(self, body_bytes: int) -> SealedPrepare:
        self.op += 1
        prepare = seal(
            parent=self._parent,
            cluster_id=CLUSTER_ID,
            view=1,
            op=self.op,
            commit=0,
            first_revision=self.op,
            command_count=1,
            feature_level=1,
            timestamp=1_700_000_000_000_000 + self.op,
            body=bytes([1 + self.op % 255]) * body_bytes,
        )
        self._parent = prepare.checksum
        return prepare


def appends(
    journal: ReplicaJournal, groups: Sequence[Sequence[SealedPrepare]], snapshot_entries: int
) -> Iterator[float]:
    """Append the groups; yield the seconds of each, with the freeing that is due behind it."""
    freed = groups[0][0].op
    for group in groups:
        begun = time.perf_counter()
        journal.append(group)
        if group[-1].op - freed >= snapshot_entries:
            freed = group[-1].op
            journal.truncate_before(freed)
            journal.prepare_spares()
        yield time.perf_counter() - begun


def measured(kind: MeasuredKind, directory: Path, entries: int) -> dict[str, Any]:
    """Return the figures of one journal in one round."""
    path = str(directory / "journal")
    journal = kind.create(path)
    chain, new_bytes = EndlessChain(), bytes_in(directory)
    alone = [[each] for each in chain.take(entries, SMALL_BYTES)]
    times = sorted(appends(journal, alone, SNAPSHOT_ENTRIES))
    grouped = [chain.take(GROUP, SMALL_BYTES) for _ in range(max(1, entries // GROUP))]
    grouped_s = sum(appends(journal, grouped, SNAPSHOT_ENTRIES))
    journal.truncate_before(chain.op)
    large = [chain.take(1, PREPARE_BODY_BYTES_MAX) for _ in range(LARGE_ENTRIES)]
    large_s = sum(appends(journal, large, SNAPSHOT_LARGE_ENTRIES))
    most_bytes = bytes_in(directory)
    journal.close()
    return {
        "append_alone_per_s": round(len(times) / sum(times)),
        "append_grouped_per_s": round(len(grouped) * GROUP / grouped_s),
        "append_large_mib_per_s": round(LARGE_ENTRIES * PREPARE_BODY_BYTES_MAX / MIB / large_s, 1),
        "slowest_ms": round(times[-1] * 1_000, 2),
        "thousandth_slowest_ms": round(times[-max(1, len(times) // 1_000)] * 1_000, 2),
        "new_mib": round(new_bytes / MIB, 1),
        "most_mib": round(most_bytes / MIB, 1),
    }


def recovered(kind: MeasuredKind, directory: Path) -> dict[str, Any]:
    """Return how long opening takes with `HELD_ENTRIES` small entries."""
    path, chain = str(directory / "journal"), EndlessChain()
    journal = kind.create(path)
    for _ in range(0, HELD_ENTRIES, 200):
        journal.append(chain.take(200, SMALL_BYTES))
    journal.close()
    begun = time.perf_counter()
    journal = kind.reopen(path)
    took_s = time.perf_counter() - begun
    assert journal.head is not None
    assert journal.head.op == HELD_ENTRIES
    journal.close()
    return {"recovery_s": round(took_s, 3)}


def until_full(directory: Path, body_bytes: int) -> int:
    """Return how many entries of clients, of a size, a primary's ring takes while no snapshot
    completes."""
    chain = EndlessChain()
    journal = RingJournal.create(
        FileStorage(), str(directory), cluster_id=CLUSTER_ID, replica_id=0, replica_count=3
    )[0]
    watch = RingWatch(journal, lambda _: None, lambda: None)
    while watch.room() is JournalRoom.FREE:
        journal.append(chain.take(16 if body_bytes < MIB // 2 else 1, body_bytes))
    journal.close()
    return journal.head.op if journal.head is not None else 0


def bytes_in(directory: Path) -> int:
    """Return the bytes of all files below a directory."""
    return sum(path.stat().st_size for path in directory.rglob("*") if path.is_file())


def _round(number: int, directory: Path, entries: int) -> dict[str, dict[str, Any]]:
    found: dict[str, dict[str, Any]] = {}
    for kind in KINDS if number % 2 == 0 else reversed(KINDS):
        with tempfile.TemporaryDirectory(dir=directory) as place:
            found[kind.name] = measured(kind, Path(place), entries)
        with tempfile.TemporaryDirectory(dir=directory) as place:
            found[kind.name] |= recovered(kind, Path(place))
        print(f"round {number + 1}: {kind.name} {found[kind.name]}", file=sys.stderr)
    return found


def report(rounds: Sequence[dict[str, dict[str, Any]]], full: dict[str, int]) -> dict[str, Any]:
    """Return the medians of each kind, and the ring's share of the segments' figures by round."""
    names = sorted(rounds[0][SEGMENTS])
    return {
        "machine": machine(),
        "rounds": len(rounds),
        "ring_mib": RING_BYTES // MIB,
        "held_entries": HELD_ENTRIES,
        "median": {
            kind.name: {name: median(each[kind.name][name] for each in rounds) for name in names}
            for kind in KINDS
        },
        "ring_of_segments": {
            name: [round(each[RING][name] / max(each[SEGMENTS][name], 1e-9), 2) for each in rounds]
            for name in names
        },
        "ring_entries_without_a_snapshot": full,
    }


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.journals", description=__doc__)
    parser.add_argument("--directory", type=Path, default=Path(tempfile.gettempdir()))
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--entries", type=int, default=ENTRIES)
    options = parser.parse_args(arguments)
    full = {}
    for name, body_bytes in (("largest", PREPARE_BODY_BYTES_MAX), ("small", SMALL_BYTES)):
        with tempfile.TemporaryDirectory(dir=options.directory) as place:
            full[name] = until_full(Path(place) / "journal", body_bytes)
    rounds = [_round(n, options.directory, options.entries) for n in range(options.rounds)]
    json.dump(report(rounds, full), sys.stdout, indent=2)
    print()
    return 0


if __name__ == "__main__":
    sys.exit(main())
