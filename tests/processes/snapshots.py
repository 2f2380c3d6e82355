"""Snapshots of a replica of real processes: tests take them, await them, and find their files."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tests.processes.callers import Caller, refused
from tests.processes.processes import COORDINATOR, ReplicaProcesses, eventually
from viewstamp.api.snapshots.v1 import snapshots_service_pb2 as pb
from viewstamp.format.manifest import decode_manifest, sections
from viewstamp.framing import encode_varint
from viewstamp.limits import KIB
from viewstamp.routing import SERVICE_NAMES

CREATE_STREAM = "/viewstamp.api.streams.v1.StreamsService/CreateStream"
# Well formed but without a name: the log takes all of it, and streams refuses it.
BULK_BYTES = 200 * KIB
BULK = b"\xa2\x06" + encode_varint(BULK_BYTES) + bytes(BULK_BYTES)
COMPLETED = pb.SNAPSHOT_STATE_COMPLETED
FAILED = pb.SNAPSHOT_STATE_FAILED


def create(root: Caller, retention: pb.RetentionClass.ValueType = pb.RETENTION_CLASS_LAST) -> int:
    """Ask for a snapshot; return its generation."""
    request = pb.CreateSnapshotRequest(retention=retention)
    return int(root.call(root.snapshots.CreateSnapshot, request).generation)


def get(root: Caller, generation: int) -> pb.Snapshot:
    """Read a generation."""
    request = pb.GetSnapshotRequest(generation=generation)
    found: pb.Snapshot = root.call(root.snapshots.GetSnapshot, request).snapshot
    return found


def current(root: Caller, *, wait: bool = False) -> pb.Snapshot:
    """Read the newest generation."""
    request = pb.GetCurrentSnapshotRequest(wait=wait)
    found: pb.Snapshot = root.call(root.snapshots.GetCurrentSnapshot, request).snapshot
    return found


def decided(root: Caller, generation: int) -> pb.Snapshot:
    """Wait until a generation is completed or has failed."""

    def look() -> pb.Snapshot | None:
        found = get(root, generation)
        return found if found.decided_at else None

    return eventually(look)


def take(root: Caller, retention: pb.RetentionClass.ValueType = pb.RETENTION_CLASS_LAST) -> int:
    """Take a snapshot, wait until it is completed, and return its generation."""
    generation = create(root, retention)
    found = decided(root, generation)
    assert found.state == COMPLETED, found
    return generation


def listed(root: Caller, page_size: int = 0) -> list[int]:
    """Return every generation of the catalog, from pages."""
    found: list[int] = []
    token = ""
    while True:
        request = pb.ListSnapshotsRequest(page_size=page_size, page_token=token)
        page = root.call(root.snapshots.ListSnapshots, request)
        assert not page_size or len(page.snapshots) <= page_size
        found += [snapshot.generation for snapshot in page.snapshots]
        token = page.next_page_token
        if not token:
            return found


def verified(root: Caller, generation: int = 0) -> list[pb.VerifySnapshotResponse]:
    """Verify a generation; return the reports."""
    request = pb.VerifySnapshotRequest(generation=generation)
    return list(root.call(root.snapshots.VerifySnapshot, request))


def logged(replica: ReplicaProcesses, message: str) -> list[dict[str, Any]]:
    """Return the fields of the coordinator's log lines with a message, over all its starts."""
    lines = replica.errors(COORDINATOR).splitlines()
    parsed = [json.loads(line) for line in lines if line.startswith("{") and line.endswith("}")]
    return [line["fields"] for line in parsed if line["message"] == message]


def is_adopted(replica: ReplicaProcesses, generation: int) -> bool:
    """Whether the replica has adopted a generation."""
    return any(each["generation"] == generation for each in logged(replica, "snapshot adopted"))


def take_and_adopt(replica: ReplicaProcesses, root: Caller) -> int:
    """Take a snapshot, and wait until the replica has adopted it."""
    generation = take(root)
    eventually(lambda: is_adopted(replica, generation))
    return generation


def copy_directories(replica: ReplicaProcesses) -> list[Path]:
    """Return the default copy directories."""
    return [replica.data / "snapshots" / f"copy-{number}" for number in range(3)]


def layers(directory: Path, generation: int) -> list[Path]:
    """Return one copy of the layers of a generation, of any section."""
    said = decode_manifest(manifest(directory, generation).read_bytes())
    digests = {layer.digest for _, section in sections(said) for layer in section.layers}
    return [directory / "layers" / f"{digest.hex()}.layer" for digest in sorted(digests)]


def manifest(directory: Path, generation: int) -> Path:
    """Return the path of one copy of a manifest."""
    return directory / "manifests" / f"{generation:020d}.manifest"


def files_below(directory: Path) -> dict[str, bytes]:
    """Return every file below a directory, by its relative path."""
    return {
        str(path.relative_to(directory)): path.read_bytes()
        for path in sorted(directory.rglob("*"))
        if path.is_file()
    }


def write_bulk(root: Caller, commands: int) -> None:
    """Fill the journal with large commands that change nothing."""
    for _ in range(commands):
        with refused() as failure:
            root.raw(CREATE_STREAM, BULK)
        assert failure.it.reason == "INVALID_STREAM_NAME"


def segments(replica: ReplicaProcesses) -> list[int]:
    """Return the numbers of the journal's segments."""
    names = (path.stem for path in (replica.data / "journal").glob("segment-*.log"))
    return sorted(int(name.removeprefix("segment-")) for name in names)


def restart_all(
    replica: ReplicaProcesses, names: Sequence[str] = (*SERVICE_NAMES, COORDINATOR)
) -> None:
    """SIGKILL processes at the same time, and start them again."""
    for name in names:
        replica.processes[name].kill()
    for name in names:
        replica.wait(name)
    replica.start(*names)


def problems_of(told: Sequence[Any]) -> list[str]:
    """Return the faults that a verification found; fail if it did not end."""
    whole = told[-1]
    assert whole.file == ""
    return list(whole.problems)
