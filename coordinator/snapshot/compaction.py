"""Merging a chain of layers into a new base, so that chains stay short and cheap to read.

The merged base is one more file that nobody names yet: the next generation begins its chain with
it. The chain that it was made of stays as it is, for the generations that name it.

Merging is done from files, block by block, in bounded memory. It takes seconds of computing where a
section is large, so the coordinator has it done by a process of low priority,
`python -m coordinator.snapshot.compaction`, which calls the same function: it reads a job from its
standard input and writes an answer, both JSON, see `CompactionJob` and `answer_of`. To start that
process takes a processor for a third of a second; small chains, which small sections need merged
with almost every snapshot, are merged in less by the process that writes snapshot files, or in the
calling thread if there is none.
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

from coordinator.snapshot.copies import Copies, CopyVerdict, Report, no_room
from coordinator.snapshot.errors import CompactionFailed, CopiesFailed, SnapshotFilesError
from coordinator.snapshot.restore import StoredLayer, open_layer
from coordinator.snapshot.verify import difference
from coordinator.snapshot.writing import SectionWriter, reached_by
from coordinator.storage import FileStorage
from viewstamp.api.snapshots.v1.manifest_pb2 import LayerReference, SectionManifest
from viewstamp.format import FormatError
from viewstamp.format.layer import LayerHeader
from viewstamp.format.merge import merge
from viewstamp.format.section import Entry, SectionTally
from viewstamp.limits import (
    COMPACT_DELTAS_BYTES_MIN,
    COMPACT_DELTAS_PERCENT,
    COMPACT_LAYERS_MAX,
    LAYER_BLOCK_BYTES_MAX,
)

MODULE: Final = "coordinator.snapshot.compaction"
# Before compression, all layers of a chain together: some milliseconds of work.
COMPACT_HERE_BYTES_MAX: Final = LAYER_BLOCK_BYTES_MAX
# As low as it goes: the event loop of the coordinator shares the machine.
NICENESS: Final = 19
_PERCENT: Final = 100


@dataclass(frozen=True, slots=True)
class CompactionJob:
    """A section to be merged, as its manifest has it."""

    cluster_id: bytes
    stage: int
    feature_level: int
    section: SectionManifest

    def to_json(self, directories: Sequence[str]) -> str:
        """The job for another process, with the copy directories."""
        return json.dumps(
            {
                "directories": list(directories),
                "cluster_id": self.cluster_id.hex(),
                "stage": self.stage,
                "feature_level": self.feature_level,
                "section": self.section.SerializeToString(deterministic=True).hex(),
            }
        )


def job_from_json(text: str) -> tuple[CompactionJob, list[str]]:
    """Read back what `CompactionJob.to_json` wrote: the job and the copy directories."""
    fields = json.loads(text)
    section = SectionManifest.FromString(bytes.fromhex(fields["section"]))
    cluster_id = bytes.fromhex(fields["cluster_id"])
    job = CompactionJob(cluster_id, fields["stage"], fields["feature_level"], section)
    return job, fields["directories"]


def needs_compaction(section: SectionManifest, bytes_min: int = COMPACT_DELTAS_BYTES_MIN) -> bool:
    """Whether the deltas have grown beyond their part of the base, or are too many.

    Up to `bytes_min` only their number counts.
    """
    if len(section.layers) < 2:
        return False
    base_bytes = section.layers[0].size_bytes
    deltas_bytes = sum(layer.size_bytes for layer in section.layers[1:])
    has_grown = deltas_bytes * _PERCENT > base_bytes * COMPACT_DELTAS_PERCENT
    return len(section.layers) >= COMPACT_LAYERS_MAX or (has_grown and deltas_bytes > bytes_min)


def merge_chain(copies: Copies, job: CompactionJob) -> LayerReference:
    """Write the base that a whole chain adds up to; return once it is durable in every directory.

    Raises CompactionFailed if the chain does not add up to the section's digest and counts,
    AllCopiesBad, SnapshotNoSpace, CopyNotWritten, CopiesFailed.
    """
    chain: list[StoredLayer] = []
    try:
        for reference in job.section.layers:
            chain.append(open_layer(copies, reference))
        return _write_base(
            copies, job, merge([each.entries() for each in chain], keep_tombstones=False)
        )
    except FormatError as error:
        raise CompactionFailed(f"section of stage {job.stage}: {error}") from error
    finally:
        for layer in chain:
            layer.close()


def _write_base(copies: Copies, job: CompactionJob, entries: Iterable[Entry]) -> LayerReference:
    header = LayerHeader(
        cluster_id=job.cluster_id,
        stage=job.stage,
        section_version=job.section.version,
        generation=reached_by(job.section.layers),
        base_generation=0,
        feature_level=job.feature_level,
    )
    tally = SectionTally()
    # Unnamed until the caller names it: while a compaction is under way no layer is collected.
    writer = SectionWriter(copies, f"base-{job.stage}", header, no_room, pin=lambda digest: None)
    try:
        writer.append_entries(_counted(entries, tally))
        wrong = difference(job.section, tally)
        if wrong is not None:
            raise CompactionFailed(f"section of stage {job.stage}: {wrong}")
        return writer.finish()
    finally:
        writer.discard()


def _counted(entries: Iterable[Entry], tally: SectionTally) -> Iterator[Entry]:
    for entry in entries:
        tally.add((entry.kind, entry.key, None, entry.canonical))
        yield entry


class Compactor(Protocol):
    """Where merging is done."""

    def merge(self, copies: Copies, job: CompactionJob) -> LayerReference:
        """As `merge_chain`."""
        ...

    def stop(self) -> None:
        """Give up what is under way, from another thread; harmless if there is nothing."""
        ...


class CompactorHere:
    """Merges in the calling thread: for tools, and for storage that is not the file system."""

    def merge(self, copies: Copies, job: CompactionJob) -> LayerReference:
        """As `merge_chain`."""
        return merge_chain(copies, job)

    def stop(self) -> None:
        """A thread cannot be ended; it is waited for."""


class CompactorApart:
    """Merges in a process of low priority. What it leaves behind when killed is garbage.

    Chains of at most `here_bytes_max` raw bytes are merged by `near`, or in the calling thread.
    """

    def __init__(
        self,
        report: Report,
        here_bytes_max: int = COMPACT_HERE_BYTES_MAX,
        near: Callable[[str], str] | None = None,
    ) -> None:
        """`report` is told of the copies that were repaired over there. `near` does a job as
        `answer_of` does, and may raise what `merge_chain` raises."""
        self._report = report
        self._near = near
        self._here_bytes_max = here_bytes_max
        self._mutex = threading.Lock()
        self._process: subprocess.Popen[str] | None = None
        self._stopped = False

    def merge(self, copies: Copies, job: CompactionJob) -> LayerReference:
        """As `merge_chain`; CompactionFailed stands for whatever else went wrong over there."""
        if sum(layer.raw_bytes for layer in job.section.layers) <= self._here_bytes_max:
            self._check_running()
            if self._near is None:
                return merge_chain(copies, job)
            return self._take(copies, json.loads(self._near(job.to_json(copies.directories))))
        process = self._start()
        output, errors = process.communicate(job.to_json(copies.directories))
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

    def _take(self, copies: Copies, answer: dict[str, object]) -> LayerReference:
        repairs = answer["repairs"]
        assert isinstance(repairs, list)
        for name, verdicts in repairs:
            self._report(name, [CopyVerdict(*each) for each in verdicts])
        if answer["must_end"]:
            # The kernel tells of a failed write once, and it told the other process.
            copies.fail(f"in the compaction process: {answer['failure']}")
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
    copies = Copies(FileStorage(), directories, report, f"compaction-{os.getpid()}")
    layer, failure, must_end = "", "", False
    try:
        layer = merge_chain(copies, job).SerializeToString(deterministic=True).hex()
    except SnapshotFilesError as error:
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
