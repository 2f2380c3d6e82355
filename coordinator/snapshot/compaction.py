"""Merging layers of a chain into one, so that chains stay short and cheap to read.

Deltas that have grown beyond their part of the base are merged with it into a new base. As long as
they have not, but are many, the last of them are merged with each other, so that a large base is
not written anew for small changes: how often an entity is written grows with the logarithm of the
size, as in trees of sorted tables.

The merged layer is one more file that nobody names yet: the next generation begins its chain with
it. The chain that it was made of stays as it is, for the generations that name it.

Merging is done from files, block by block, in bounded memory. It takes seconds of computing where a
section is large, so the coordinator has it done by a process of low priority,
`python -m coordinator.snapshot.compaction`, which calls the same function: it reads a job from its
standard input and writes an answer, both JSON, see `CompactionJob` and `answer_of`. To start that
process takes a processor for a third of a second; small chains, which small sections need merged
with almost every snapshot, are merged in less by the process that writes snapshot files.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final, Protocol

from coordinator.snapshot.copies import CopyDirectories, CopyVerdict, Report
from coordinator.snapshot.errors import CompactionFailed, CopiesFailed, SnapshotStorageError
from coordinator.snapshot.restore import StoredLayer, open_layer
from coordinator.snapshot.section_writer import SectionWriter, reached_by
from coordinator.snapshot.verify import difference
from coordinator.storage import FileStorage
from viewstamp.api.snapshots.v1.manifest_pb2 import LayerReference, SectionManifest
from viewstamp.format import FormatError
from viewstamp.format.layer import LayerHeader
from viewstamp.format.merge import merge
from viewstamp.format.section import SectionEntry, SectionTally
from viewstamp.limits import (
    COMPACT_DELTAS_BYTES_MIN,
    COMPACT_DELTAS_PERCENT,
    COMPACT_LAYERS_MAX,
    LAYER_BLOCK_BYTES_MAX,
)

MODULE: Final = "coordinator.snapshot.compaction"
# Before compression, all layers of a chain together: some milliseconds of work.
SMALL_CHAIN_BYTES_MAX: Final = LAYER_BLOCK_BYTES_MAX
# As low as it goes: the event loop of the coordinator shares the machine.
NICENESS: Final = 19
_PERCENT: Final = 100
# A delta goes with those behind it if it is at most so many times as large as all of them.
TAIL_FACTOR: Final = 2


@dataclass(frozen=True, slots=True)
class CompactionJob:
    """A section whose layers from `first` on are to be merged, as its manifest has it.

    With `first` 0 they become a base, else a delta against what comes before them.
    """

    cluster_id: bytes
    stage: int
    feature_level: int
    section: SectionManifest
    first: int = 0

    @property
    def layers(self) -> Sequence[LayerReference]:
        """The layers to be merged."""
        return self.section.layers[self.first :]

    def to_json(self, directories: Sequence[str]) -> str:
        """The job for another process, with the copy directories."""
        return json.dumps(
            {
                "directories": list(directories),
                "cluster_id": self.cluster_id.hex(),
                "stage": self.stage,
                "feature_level": self.feature_level,
                "section": self.section.SerializeToString(deterministic=True).hex(),
                "first": self.first,
            }
        )


def job_from_json(text: str) -> tuple[CompactionJob, list[str]]:
    """Read back what `CompactionJob.to_json` wrote: the job and the copy directories."""
    fields = json.loads(text)
    section = SectionManifest.FromString(bytes.fromhex(fields["section"]))
    cluster_id = bytes.fromhex(fields["cluster_id"])
    job = CompactionJob(
        cluster_id, fields["stage"], fields["feature_level"], section, fields["first"]
    )
    return job, fields["directories"]


def first_to_merge(
    section: SectionManifest, bytes_min: int = COMPACT_DELTAS_BYTES_MIN
) -> int | None:
    """From which layer on a chain is to be merged: 0 for all of it, None for not yet.

    Deltas count as grown beyond `COMPACT_DELTAS_PERCENT` of the base; up to `bytes_min` only their
    number counts.
    """
    if len(section.layers) < 2:
        return None
    base_bytes = section.layers[0].size_bytes
    deltas_bytes = sum(layer.size_bytes for layer in section.layers[1:])
    has_grown = deltas_bytes * _PERCENT > base_bytes * COMPACT_DELTAS_PERCENT
    is_long = len(section.layers) >= COMPACT_LAYERS_MAX
    if has_grown and (is_long or deltas_bytes > bytes_min):
        return 0
    return _first_of_tail(section.layers) if is_long else None


def _first_of_tail(layers: Sequence[LayerReference]) -> int:
    """The deltas at the end that are not much larger than all behind them; at least half of all."""
    first = len(layers) - 1
    behind_bytes = layers[first].size_bytes
    while first > 1 and layers[first - 1].size_bytes <= TAIL_FACTOR * behind_bytes:
        first -= 1
        behind_bytes += layers[first].size_bytes
    return max(1, min(first, len(layers) - COMPACT_LAYERS_MAX // 2))


def merge_chain(copies: CopyDirectories, job: CompactionJob) -> LayerReference:
    """Write the layer that a job's layers add up to; return once it is durable in every directory.

    Raises CompactionFailed if a whole chain does not add up to the section's digest and counts,
    AllCopiesBad, SnapshotNoSpace, CopyNotWritten, CopiesFailed.
    """
    opened: list[StoredLayer] = []
    try:
        for reference in job.layers:
            opened.append(open_layer(copies, reference))
        entries = merge([each.entries() for each in opened], keep_tombstones=job.first > 0)
        return _write(copies, job, entries)
    except FormatError as error:
        raise CompactionFailed(f"section of stage {job.stage}: {error}") from error
    finally:
        for layer in opened:
            layer.close()


def _write(
    copies: CopyDirectories, job: CompactionJob, entries: Iterable[SectionEntry]
) -> LayerReference:
    header = LayerHeader(
        cluster_id=job.cluster_id,
        stage=job.stage,
        section_version=job.section.version,
        generation=reached_by(job.section.layers),
        base_generation=reached_by(job.section.layers[: job.first]),
        feature_level=job.feature_level,
    )
    # Unnamed until the caller names it: while a compaction is under way no layer is collected.
    writer = SectionWriter(
        copies.local,
        f"merged-{job.stage}",
        lambda: header,
        pin=lambda digest: None,
        use_reserve=False,
    )
    try:
        if job.first > 0:
            writer.add_entries(entries)
        else:
            _add_all(writer, job, entries)
        return writer.finish()
    finally:
        writer.discard()


def _add_all(writer: SectionWriter, job: CompactionJob, entries: Iterable[SectionEntry]) -> None:
    """Add a whole section, and hold it to what the manifest says of it."""
    tally = SectionTally()
    writer.add_entries(_counted(entries, tally))
    wrong = difference(job.section, tally)
    if wrong is not None:
        raise CompactionFailed(f"section of stage {job.stage}: {wrong}")


def _counted(entries: Iterable[SectionEntry], tally: SectionTally) -> Iterator[SectionEntry]:
    for entry in entries:
        tally.add((entry.kind, entry.key, None, entry.canonical))
        yield entry


class Compactor(Protocol):
    """Where merging is done, if not in the calling thread."""

    def merge(self, copies: CopyDirectories, job: CompactionJob) -> LayerReference:
        """As `merge_chain`."""
        ...

    def stop(self) -> None:
        """Give up what is under way, from another thread; harmless if there is nothing."""
        ...


class ProcessCompactor:
    """Merges in a process of low priority. What it leaves behind when killed is garbage.

    Chains of at most `small_bytes_max` raw bytes are merged by the writer process, which is there.
    """

    def __init__(
        self,
        report: Report,
        merge_small: Callable[[str], str],
        small_bytes_max: int = SMALL_CHAIN_BYTES_MAX,
    ) -> None:
        """`report` is told of the copies that were repaired over there; `merge_small` does in the
        writer process what `answer_of` does."""
        self._report = report
        self._merge_small = merge_small
        self._small_bytes_max = small_bytes_max
        self._mutex = threading.Lock()
        self._process: subprocess.Popen[str] | None = None
        self._stopped = False

    def merge(self, copies: CopyDirectories, job: CompactionJob) -> LayerReference:
        """As `merge_chain`; CompactionFailed stands for whatever else went wrong over there."""
        text = job.to_json(copies.directories)
        if sum(layer.raw_bytes for layer in job.layers) <= self._small_bytes_max:
            self._check_running()
            return self._take(copies, json.loads(self._merge_small(text)))
        process = self._start()
        output, errors = process.communicate(text)
        self._process = None
        if process.returncode != 0:
            last = errors.strip().splitlines()[-1:] or ["it said nothing"]
            raise CompactionFailed(
                f"the compaction process ended with status {process.returncode}: {last[0]}"
            )
        return self._take(copies, json.loads(output))

    def _start(self) -> subprocess.Popen[str]:
        with self._mutex:
            self._check_running()
            self._process = subprocess.Popen(
                [sys.executable, "-m", MODULE],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
            )
            return self._process

    def _check_running(self) -> None:
        if self._stopped:
            raise CompactionFailed("compaction was stopped, since the replica is stopping")

    def _take(self, copies: CopyDirectories, answer: dict[str, object]) -> LayerReference:
        repairs = answer["repairs"]
        assert isinstance(repairs, list)
        for name, verdicts in repairs:
            self._report(name, [CopyVerdict(*each) for each in verdicts])
        if answer["must_end"]:
            # The kernel tells of a failed write once, and it told the other process.
            copies.local.fail(f"in the compaction process: {answer['failure']}")
        if answer["failure"]:
            raise CompactionFailed(str(answer["failure"]))
        return LayerReference.FromString(bytes.fromhex(str(answer["layer"])))

    def stop(self) -> None:
        """Kill the process, if there is one, and start no other."""
        with self._mutex:
            self._stopped = True
            if self._process is not None:
                self._process.kill()


def answer_of(text: str) -> str:
    """Do the job of a text and return the answer.

    Its fields: `layer`, the encoded LayerReference in hexadecimal digits, or "" after a failure;
    `failure`, what went wrong, or ""; `must_end`, whether the coordinator must end, too, since a
    sync failed; `repairs`, (name, verdicts) of files with damaged copies.
    """
    repairs: list[tuple[str, list[list[str | None]]]] = []

    def report(name: str, verdicts: Sequence[CopyVerdict]) -> None:
        repairs.append((name, [[v.directory, v.damage, v.unrepaired] for v in verdicts]))

    job, directories = job_from_json(text)
    # A coordinator that was killed may have left another one of us running.
    copies = CopyDirectories(FileStorage(), directories, report, f"compaction-{os.getpid()}")
    layer, failure, must_end = "", "", False
    try:
        layer = merge_chain(copies, job).SerializeToString(deterministic=True).hex()
    except SnapshotStorageError as error:
        failure, must_end = str(error), isinstance(error, CopiesFailed)
    return json.dumps(
        {"layer": layer, "failure": failure, "must_end": must_end, "repairs": repairs}
    )


def main() -> None:
    """Be the process of low priority."""
    os.nice(NICENESS)
    sys.stdout.write(answer_of(sys.stdin.read()))


if __name__ == "__main__":
    main()
