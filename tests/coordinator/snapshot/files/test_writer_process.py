"""Generations of a writer process equal those written here, and its death harms none."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, TypeAlias

import pytest
from blake3 import blake3

from coordinator.snapshot import section_writer, writer_process
from coordinator.snapshot.copies import CopyDirectories
from coordinator.snapshot.errors import CopiesFailed, CopyNotWritten, SnapshotNoSpace
from coordinator.snapshot.files import SnapshotDirectories, SnapshotFiles
from coordinator.snapshot.layout import DigestCheck
from coordinator.snapshot.local_writer import LocalWriter
from coordinator.snapshot.opening import release
from coordinator.snapshot.writer_process import WriterProcess
from coordinator.snapshot.writer_server import answer
from coordinator.storage import DirectoryInUse, FileStorage
from testkit.generation_builders import (
    COPY_DIRECTORIES,
    RESERVE_BYTES_MIN,
    Repairs,
    Sections,
    entities,
    loaded_state,
    memory,
    open_files,
)
from testkit.journal_builders import CLUSTER_ID
from testkit.memory_storage import MemoryStorage

NAME = "layers/some.layer"
Answer: TypeAlias = tuple[str | None, Any]


def open_on_disk(root: Path, *, has_writer_process: bool) -> SnapshotFiles:
    """Snapshot files in three directories of a file system."""
    root.mkdir(exist_ok=True)
    paths = tuple(str(root / name) for name in "abc")
    return SnapshotFiles(
        FileStorage(),
        SnapshotDirectories(paths, CLUSTER_ID, 0),
        report=Repairs(),
        reserve_bytes_min=RESERVE_BYTES_MIN,
        compact_bytes_min=0,
        has_writer_process=has_writer_process,
    )


@pytest.fixture
def files(tmp_path: Path) -> Iterator[SnapshotFiles]:
    """Files that another process writes."""
    opened = open_on_disk(tmp_path / "there", has_writer_process=True)
    yield opened
    opened.close()


def process_of(files: SnapshotFiles) -> WriterProcess:
    """Return the other process."""
    assert files.process is not None
    return files.process


def contents(root: Path) -> dict[str, bytes]:
    """Return every file below a directory by its name, except locks, which hold a process id."""
    return {
        str(path.relative_to(root)): path.read_bytes()
        for path in sorted(root.rglob("*"))
        if path.is_file() and path.name != "LOCK"
    }


def live(files: SnapshotFiles) -> Sections:
    """Write three generations, merge a chain, write another one, and collect garbage."""
    sections = Sections(files)
    sections.write(1, entities(1, 8))
    sections.write(2, entities(2, 4, first=6))
    manifest = sections.write(3, entities(3, 2))
    files.compact(manifest, 4)
    sections.write(4, entities(4, 1))
    files.collect_garbage([4], 4)
    return sections


@pytest.mark.parametrize("held_bytes_max", [0, section_writer.HELD_BYTES_MAX])
def test_the_same_files(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, files: SnapshotFiles, held_bytes_max: int
) -> None:
    """In pieces or at once, the other process writes byte by byte the same as this one."""
    here = open_on_disk(tmp_path / "here", has_writer_process=False)
    live(here)
    here.close()
    monkeypatch.setattr(section_writer, "HELD_BYTES_MAX", held_bytes_max)
    sections = live(files)
    assert process_of(files).pid is not None
    assert contents(tmp_path / "there") == contents(tmp_path / "here")
    assert loaded_state(files, 4) == sections.state


def test_a_dead_process_fails_the_generation_alone(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, files: SnapshotFiles
) -> None:
    """A writer killed with a file in the making is reported; the next generation has another."""
    monkeypatch.setattr(section_writer, "HELD_BYTES_MAX", 0)
    sections = Sections(files)
    sections.write(1, entities(1, 3))
    first = process_of(files).pid
    assert first is not None
    writer = process_of(files)
    key = writer.stage("layers/half", use_reserve=False)
    os.kill(first, signal.SIGKILL)
    with pytest.raises(CopyNotWritten, match=r"ended with status -9 .* 'append'"):
        writer.append(key, b"half")
    with pytest.raises(CopyNotWritten, match="in a process that has ended"):
        writer.append(key, b"more")
    writer.discard(key)
    sections.write(2, entities(2, 2))
    assert process_of(files).pid not in {None, first}
    assert loaded_state(files, 2) == sections.state
    files.close()
    reopened = open_on_disk(tmp_path / "there", has_writer_process=True)
    assert not [name for name in contents(tmp_path / "there") if name.endswith(".tmp")]
    reopened.close()


def test_what_cannot_be_started_is_told(
    monkeypatch: pytest.MonkeyPatch, files: SnapshotFiles
) -> None:
    """A process that ends at once fails every write, with its status."""
    monkeypatch.setattr(writer_process, "MODULE", "coordinator.snapshot.no_such_module")
    for generation in (1, 2):
        with pytest.raises(CopyNotWritten, match="ended with status 1"):
            Sections(files).write(generation, entities(generation, 1))


def test_the_process_holds_the_directories(tmp_path: Path, files: SnapshotFiles) -> None:
    """No other process opens the directories while a writer lives, even if its coordinator is
    dead."""
    Sections(files).write(1, entities(1, 1))
    release(files.locks)  # as the kernel does for a coordinator that was killed
    with pytest.raises(DirectoryInUse):
        open_on_disk(tmp_path / "there", has_writer_process=True)
    process_of(files).stop()
    open_on_disk(tmp_path / "there", has_writer_process=True).close()


def test_a_start_after_a_crash_waits_for_the_writer(tmp_path: Path, files: SnapshotFiles) -> None:
    """The writer of a dead coordinator may finish its call; the next process begins after it."""
    Sections(files).write(1, entities(1, 1))
    dead = subprocess.Popen([sys.executable, "-c", ""])
    dead.wait()
    for name in "abc":
        (tmp_path / "there" / name / "LOCK").write_text(str(dead.pid))
    release(files.locks)
    with ThreadPoolExecutor(1) as threads:
        opening = threads.submit(open_on_disk, tmp_path / "there", has_writer_process=True)
        with pytest.raises(TimeoutError):
            opening.result(timeout=0.1)
        process_of(files).stop()
        opening.result().close()


def test_nothing_is_written_after_the_end(files: SnapshotFiles) -> None:
    """Closed files start no other process."""
    sections = Sections(files)
    sections.write(1, entities(1, 1))
    files.close()
    with pytest.raises(CopyNotWritten, match="is stopping"):
        sections.write(2, entities(2, 1))


# --- The other side, on a simulated disk ---


def fill(storage: MemoryStorage, spare_bytes: int = 0) -> None:
    """Leave one directory only so much room beside its files."""
    directory = COPY_DIRECTORIES[1]
    used = sum(len(storage.content(p)) for p in storage.paths() if p.startswith(f"{directory}/"))
    storage.capacities_bytes[directory] = used + spare_bytes


@pytest.mark.parametrize(("use_reserve", "error"), [(True, None), (False, "SnapshotNoSpace")])
def test_a_full_disk_over_there(use_reserve: bool, error: str | None) -> None:
    """In the other process, too, the reserve is only for generations."""
    storage = memory()
    files = open_files(storage, reserve_bytes_min=20_000)
    files.rebuild_reserve(Sections(files).write(1, entities(1, 1)))
    files.close()
    fill(storage)
    writer = LocalWriter(storage, COPY_DIRECTORIES, "writer")
    found, _ = answer(writer, ("write", (NAME, b"x" * 5_000, use_reserve)))
    assert found == error
    if not error:
        assert storage.content(f"{COPY_DIRECTORIES[1]}/{NAME}") == b"x" * 5_000


class NearProcess(WriterProcess):
    """Answers in this process, on a simulated disk."""

    def __init__(self, storage: MemoryStorage, local: LocalWriter) -> None:
        super().__init__(local, ())
        self._there = LocalWriter(storage, COPY_DIRECTORIES, "writer")
        self._answers = list[Answer]()

    def _connected(self) -> Any:
        return self

    def send(self, request: tuple[str, tuple[Any, ...]]) -> None:
        """Do the other process's work."""
        self._answers.append(answer(self._there, request))

    def recv(self) -> Answer:
        """Return its answer."""
        return self._answers.pop()


def test_a_failed_sync_over_there_ends_this_process() -> None:
    """The kernel reports a failed sync once: afterwards nothing may be written, or read as good."""
    storage = memory()
    open_files(storage).close()
    copies = CopyDirectories(storage, COPY_DIRECTORIES, Repairs(), "coordinator")
    process = NearProcess(storage, copies.local)

    def refuse(name: str) -> None:
        if name.startswith("sync "):
            raise OSError(5, "Input/output error")

    storage.before_step = refuse
    with pytest.raises(CopiesFailed, match=r"in the process that writes them: .*must end"):
        process.write(NAME, b"data", use_reserve=False)
    storage.before_step = None
    with pytest.raises(CopiesFailed):
        process.delete([NAME])
    with pytest.raises(CopiesFailed):
        copies.scrub(NAME, lambda file: None)
    assert not storage.exists(f"{COPY_DIRECTORIES[0]}/{NAME}")


@pytest.mark.parametrize("spare_bytes", [0, 3_000])
def test_a_disk_that_fills_up_over_there_leaves_nothing(spare_bytes: int) -> None:
    """A disk that fills up within a large file is reported, and no part of the file is left."""
    storage = memory()
    open_files(storage, reserve_bytes_min=0).close()
    fill(storage, spare_bytes)
    before = storage.snapshot()
    process = NearProcess(storage, LocalWriter(storage, COPY_DIRECTORIES, "coordinator"))
    key = process.stage("layers/large", use_reserve=True)
    with pytest.raises(SnapshotNoSpace):
        for _ in range(4):
            process.append(key, b"x" * 1_000)
    process.discard(key)
    assert storage.snapshot() == before


def test_a_large_file_over_there_is_verified() -> None:
    """A file that does not match its digest is reported, and was made durable before."""
    storage = memory()
    open_files(storage).close()
    process = NearProcess(storage, LocalWriter(storage, COPY_DIRECTORIES, "coordinator"))
    key = process.stage("layers/large", use_reserve=False)
    process.append(key, b"other")
    with pytest.raises(CopyNotWritten, match="does not read back"):
        process.place(key, NAME, DigestCheck(blake3(b"right").digest(), 5))
    process.discard(key)
    assert not [path for path in storage.paths() if path.endswith(".tmp")]


def test_a_defect_ends_the_process() -> None:
    """An unexpected error is not turned into an answer."""
    with pytest.raises(AssertionError, match="not to be asked for"):
        answer(LocalWriter(memory(), COPY_DIRECTORIES, "writer"), ("check_usable", ()))
