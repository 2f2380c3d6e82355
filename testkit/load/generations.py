"""What snapshots a trial left behind, and whether their files say what the cluster says."""

from __future__ import annotations

from collections.abc import Container, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from testkit.load.oracle import Check, Digests, Violation
from viewstamp.api.snapshots.v1 import snapshots_service_pb2 as snapshots_pb2
from viewstamp.client import Client
from viewstamp.format.manifest import sections
from viewstamp.snapshots.copies import Copies, copy_directories
from viewstamp.snapshots.entities import SECTION_NAMES
from viewstamp.snapshots.errors import SnapshotFilesError
from viewstamp.snapshots.generation import Generation
from viewstamp.snapshots.verify import GenerationVerdict, verify

COMPLETED: Final = "COMPLETED"
# Sessions and the catalog go on after the last cut: whoever asked for it leaves, it is decided.
UNCHANGED_SECTIONS: Final = ("users", "streams", "consumer_groups")


@dataclass(frozen=True, slots=True)
class TakenGeneration:
    """One snapshot, as the cluster lists it; `is_asked` if it was not the cluster's own idea."""

    generation: int
    state: str
    is_asked: bool
    cut_revision: int
    entities: int
    size_bytes: int
    failure: str


def taken_of(snapshot: snapshots_pb2.Snapshot, asked: Container[int]) -> TakenGeneration:
    """Return what of a snapshot is reported."""
    state = snapshots_pb2.SnapshotState.Name(snapshot.state)
    return TakenGeneration(
        generation=snapshot.generation,
        state=state.removeprefix("SNAPSHOT_STATE_"),
        is_asked=snapshot.generation in asked,
        cut_revision=snapshot.cut_revision,
        entities=sum(task.entities for task in snapshot.tasks),
        size_bytes=sum(task.size_bytes for task in snapshot.tasks),
        failure=snapshot.failure,
    )


async def list_taken(client: Client, asked: Container[int]) -> list[TakenGeneration]:
    """Return every snapshot that is kept, oldest first."""
    return [taken_of(one, asked) async for one in client.snapshots.list()][::-1]


def check_files(taken: Iterable[TakenGeneration], data_directory: Path) -> list[Violation]:
    """Verify every completed generation offline, as `viewstamp snapshot verify` does."""
    evidence = []
    completed = [one.generation for one in taken if one.state == COMPLETED]
    if not completed:
        evidence.append("no snapshot was completed")
    for one in taken:
        if one.state not in (COMPLETED, "FAILED"):
            evidence.append(f"generation {one.generation} was never decided: {one.state}")
    for number in completed:
        evidence += [f"generation {number}: {text}" for text in _problems(data_directory, number)]
    return [Violation(Check.SNAPSHOTS, line) for line in evidence]


def check_last_layers(data_directory: Path, generation: int, live: Digests) -> list[Violation]:
    """Compare the digests that the last snapshot's layers add up to with those of the cluster.

    Its manifest is taken at its word: `check_files` has recomputed what it says.
    """
    try:
        manifest = Generation(Copies(copy_directories(data_directory)), generation).manifest
    except SnapshotFilesError as error:
        return [Violation(Check.LAYERS, error.message)]
    of_layers = {
        SECTION_NAMES[stage]: section.state_digest.hex() for stage, section in sections(manifest)
    }
    return [
        Violation(Check.LAYERS, f"{name}: {live.stages.get(name)}, its layers {of_layers[name]}")
        for name in UNCHANGED_SECTIONS
        if live.stages.get(name) != of_layers[name]
    ]


def _problems(data_directory: Path, generation: int) -> Sequence[str]:
    try:
        found = list(verify(Copies(copy_directories(data_directory)), generation))
    except SnapshotFilesError as error:
        return (error.message,)
    verdict = found[-1]
    assert isinstance(verdict, GenerationVerdict), "a verification ends with a verdict on the whole"
    return verdict.problems
