"""Merging layers of a chain into one, so that chains stay short and cheap to read.

Deltas that have grown beyond their part of the base are merged with it into a new base. If they
have not, but are many, the last of them are merged with each other, so that a large base is not
rewritten for small changes: how often an entity is written grows with the logarithm of the size, as
in log-structured merge trees.

The merged layer is a file that no manifest names yet: the next generation begins its chain with it.
The chain from which it was made stays as it is, for the generations that name it.

Merging works on files, block by block, in bounded memory. A large section takes seconds of
computing, so the coordinator uses a process of low priority,
`python -m coordinator.snapshot.compaction`, which calls the same function: it reads a job from its
standard input and writes an answer, both JSON, see `CompactionJob` and `answer_of`. Starting that
process takes a processor for a third of a second. The process that writes snapshot files merges
small chains, which small sections need with almost every snapshot, in less time.
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
# All layers of a chain together, before compression: some milliseconds of work.
SMALL_CHAIN_BYTES_MAX: Final = LAYER_BLOCK_BYTES_MAX
# The lowest priority: the event loop of the coordinator shares the machine.
NICENESS: Final = 19
_PERCENT: Final = 100
# A delta joins the later ones if it is at most this many times as large as all of them.
TAIL_FACTOR: Final = 2


@dataclass(frozen=True, slots=True)
class CompactionJob:
    """A section, as its manifest describes it, whose layers from `first` on are to be merged.

    With `first` 0 they become a base, otherwise a delta against the layers before.
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
        """Return the job, with the copy directories, as JSON for another process."""
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
    """Return the layer from which on a chain is to be merged: 0 for all of it, None for not yet.

    Deltas are too large beyond `COMPACT_DELTAS_PERCENT` of the base; up to `bytes_min` only their
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
    """Return the first of the last deltas that are not much larger than later ones; at least
    half."""
    first = len(layers) - 1
    behind_bytes = layers[first].size_bytes
    while first > 1 and layers[first - 1].size_bytes <= TAIL_FACTOR * behind_bytes:
        first -= 1
        behind_bytes += layers[first].size_bytes
    return max(1, min(first, len(layers) - COMPACT_LAYERS_MAX // 2))


def merge_chain(copies: CopyDirectories, job: CompactionJob) -> LayerReference:
    """Write the merged layer of a job; return once it is durable in every directory.

    Raises CompactionFailed if a whole chain does not match the section's digest and counts,
    NoIntactCopy, SnapshotNoSpace, CopyNotWritten, CopiesFailed.
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
    """Add a whole section, and check it against the manifest."""
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
    """Merges elsewhere than in the calling thread."""

    def merge(self, copies: CopyDirectories, job: CompactionJob) -> LayerReference:
        """As `merge_chain`."""
        ...

    def stop(self) -> None:
        """Cancel the merge under way, from another thread; harmless if there is none."""
        ...


class ProcessCompactor:
    """Merges in a process of low priority. A killed process leaves only garbage.

    The writer process, which already runs, merges chains of at most `small_bytes_max` raw bytes.
    """

    def __init__(
        self,
        report: Report,
        merge_small: Callable[[str], str],
        small_bytes_max: int = SMALL_CHAIN_BYTES_MAX,
    ) -> None:
        """`report` is told of copies repaired there; `merge_small` does in the writer process what
        `answer_of` does."""
        self._report = report
        self._merge_small = merge_small
        self._small_bytes_max = small_bytes_max
        self._mutex = threading.Lock()
        self._process: subprocess.Popen[str] | None = None
        self._stopped = False

    def merge(self, copies: CopyDirectories, job: CompactionJob) -> LayerReference:
        """As `merge_chain`; any other failure there raises CompactionFailed."""
        text = job.to_json(copies.directories)
        if sum(layer.raw_bytes for layer in job.layers) <= self._small_bytes_max:
            self._check_running()
            return self.take(copies, json.loads(self._merge_small(text)))
        process = self._start()
        output, errors = process.communicate(text)
        self._process = None
        if process.returncode != 0:
            last = errors.strip().splitlines()[-1:] or ["it said nothing"]
            raise CompactionFailed(
                f"the compaction process ended with status {process.returncode}: {last[0]}"
            )
        return self.take(copies, json.loads(output))

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

    def take(self, copies: CopyDirectories, answer: dict[str, object]) -> LayerReference:
        """Return the layer of an answer, after telling of repairs.

        Raises CopiesFailed if the other process met a disk that fails, CompactionFailed otherwise.
        """
        repairs = answer["repairs"]
        assert isinstance(repairs, list)
        for name, verdicts in repairs:
            self._report(name, [CopyVerdict(*each) for each in verdicts])
        if answer["must_end"]:
            # The kernel reports a failed write once, and it told the other process.
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
    """Do the job in a text and return the answer.

    Its fields: `layer`, the encoded LayerReference in hexadecimal digits, or "" after a failure;
    `failure`, what went wrong, or ""; `must_end`, whether the coordinator must end too, since a
    sync failed; `repairs`, (name, verdicts) of files with damaged copies.
    """
    repairs: list[tuple[str, list[list[str | None]]]] = []

    def report(name: str, verdicts: Sequence[CopyVerdict]) -> None:
        repairs.append((name, [[v.directory, v.damage, v.unrepaired] for v in verdicts]))

    job, directories = job_from_json(text)
    # A killed coordinator may have left another compaction process running.
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
    """Run the process of low priority."""
    os.nice(NICENESS)
    sys.stdout.write(answer_of(sys.stdin.read()))


if __name__ == "__main__":
    main()
