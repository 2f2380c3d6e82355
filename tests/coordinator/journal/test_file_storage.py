"""Storage on a real file system, and a journal and a superblock on top of it."""

from __future__ import annotations

import ctypes
import mmap
import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from coordinator.journal import Superblock
from coordinator.storage import DirectoryInUse, FileStorage
from testkit.journal_builders import CLUSTER_ID, SEGMENT_BYTES, chain, create, reopen
from testkit.journal_reading import entries
from viewstamp.format.superblock import SuperblockState

HOLD_LOCK = """
import sys
from coordinator.storage import FileStorage
lock = FileStorage().lock(sys.argv[1])
print("held", flush=True)
sys.stdin.read()
"""
ROOT = Path(__file__).parents[3]
_LIBC = ctypes.CDLL(None, use_errno=True)


@pytest.fixture
def directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A directory of its own, which is also the current one, with `data` in it."""
    monkeypatch.chdir(tmp_path)
    FileStorage().make_directory("data")
    return str(tmp_path)


def test_files_are_read_as_written(directory: str) -> None:
    """Positional writes and reads agree, reads end at the end, sizes are exact."""
    storage = FileStorage()
    file = storage.create(f"{directory}/file")
    file.write(5, b"world")
    file.write(0, b"hello")
    file.sync()

    assert file.size() == 10
    assert file.read(0, 100) == b"helloworld"
    assert file.read(3, 4) == b"lowo"
    assert file.read(10, 1) == b""
    assert file.path == f"{directory}/file"
    file.close()
    file.close()
    with pytest.raises(ValueError, match="is closed"):
        file.size()


def test_existing_files_are_opened_without_creating(directory: str) -> None:
    """Opening needs the file, creating needs its absence."""
    storage = FileStorage()
    with pytest.raises(FileNotFoundError):
        storage.open(f"{directory}/file")
    assert not storage.exists(f"{directory}/file")
    storage.create(f"{directory}/file").close()
    assert storage.exists(f"{directory}/file")
    with pytest.raises(FileExistsError):
        storage.create(f"{directory}/file")
    assert stat.S_IMODE(Path(f"{directory}/file").stat().st_mode) == 0o600


def test_preallocation_fills_with_zeros(directory: str) -> None:
    """Space is really written, from the end of the file on, in whatever size."""
    file = FileStorage().create(f"{directory}/file")
    file.write(0, b"x")
    file.preallocate(3 * 1024 * 1024 + 17)
    assert file.size() == 3 * 1024 * 1024 + 17
    assert file.read(0, file.size()) == b"x" + bytes(3 * 1024 * 1024 + 16)
    assert Path(file.path).stat().st_blocks * 512 >= file.size()
    file.preallocate(5)
    assert file.size() == 3 * 1024 * 1024 + 17
    file.close()


def test_entries_come_and_go(directory: str) -> None:
    """Renaming replaces, unlinking removes, and names are sorted."""
    storage = FileStorage()
    for name in ("b", "a"):
        file = storage.create(f"{directory}/{name}")
        file.write(0, name.encode())
        file.close()
    assert storage.names(directory) == ["a", "b", "data"]
    storage.rename(f"{directory}/a", f"{directory}/b")
    storage.sync_directory(directory)
    assert storage.names(directory) == ["b", "data"]
    with storage_file(storage, f"{directory}/b") as content:
        assert content == b"a"
    storage.unlink(f"{directory}/b")
    assert storage.names(directory) == ["data"]
    with pytest.raises(FileNotFoundError):
        storage.unlink(f"{directory}/b")


class storage_file:  # noqa: N801  Reads like a function where it is used.
    """The whole content of a file, closed at the end."""

    def __init__(self, storage: FileStorage, path: str) -> None:
        self._file = storage.open(path)

    def __enter__(self) -> bytes:
        return self._file.read(0, self._file.size())

    def __exit__(self, *_: object) -> None:
        self._file.close()


def test_directories_are_made_once(directory: str) -> None:
    """Making a directory again is harmless, making one where a file lies is not."""
    storage = FileStorage()
    storage.make_directory(f"{directory}/data")
    storage.make_directory(f"{directory}/data")
    storage.create(f"{directory}/file").close()
    with pytest.raises(FileExistsError):
        storage.make_directory(f"{directory}/file")
    assert storage.free_bytes(directory) > 0


def test_a_lock_excludes_a_second_holder(directory: str) -> None:
    """The second one learns path and process, and may enter once the first has left."""
    storage = FileStorage()
    lock = storage.lock(directory)
    with pytest.raises(DirectoryInUse, match=f"{directory} is in use by process {os.getpid()}"):
        storage.lock(directory)
    lock.release()
    lock.release()
    storage.lock(directory).release()


def test_a_lock_excludes_other_processes_and_dies_with_its_holder(directory: str) -> None:
    """A killed holder leaves no lock behind, and a live one is named."""
    command = [sys.executable, "-c", HOLD_LOCK, directory]
    holder = subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=ROOT, text=True
    )
    assert holder.stdout is not None
    assert holder.stdout.readline() == "held\n"
    with pytest.raises(DirectoryInUse) as raised:
        FileStorage().lock(directory)
    assert raised.value.holder == holder.pid
    holder.kill()
    holder.communicate()
    FileStorage().lock(directory).release()


def test_a_holder_without_a_number_is_another_process(directory: str) -> None:
    """A lock file without a process id still excludes, and says less."""
    storage = FileStorage()
    lock = storage.lock(directory)
    Path(f"{directory}/LOCK").write_text("")
    with pytest.raises(DirectoryInUse, match="in use by another process") as raised:
        storage.lock(directory)
    assert raised.value.holder is None
    lock.release()


def test_a_journal_lives_in_real_files(directory: str) -> None:
    """Append, rotate, truncate, reopen and cut work on a file system as they do in memory."""
    storage = FileStorage()
    journal = create(storage)
    prepares = chain(25)
    for start in range(0, 25, 5):
        journal.append(prepares[start : start + 5])
        journal.prepare_spares()
    assert journal.truncate_before(7) == 2
    with pytest.raises(DirectoryInUse):
        reopen(storage)
    journal.close()

    journal, recovery = reopen(storage, commit_max=20, replay_op=7)
    assert list(entries(journal, 7)) == prepares[6:]
    assert recovery.cut is None
    journal.close()

    newest = max(Path("data/journal").glob("segment-*.log"), key=lambda path: path.stat().st_mtime)
    assert newest.stat().st_size == SEGMENT_BYTES
    segment = sorted(Path("data/journal").glob("segment-*.log"))[-4]
    content = bytearray(segment.read_bytes())
    content[4096 + 200] ^= 1
    segment.write_bytes(content)
    journal, recovery = reopen(storage, commit_max=20, replay_op=7)
    assert recovery.cut is not None
    assert recovery.cut.op == 25
    journal.append(prepares[24:])
    journal.close()


def test_a_superblock_lives_in_a_real_file(directory: str) -> None:
    """Create, write and open work on a file system as they do in memory."""
    storage = FileStorage()
    first = SuperblockState(CLUSTER_ID, 0, 1, view=0, log_view=0, commit_max=0, generation=0)
    second = SuperblockState(CLUSTER_ID, 0, 1, view=4, log_view=3, commit_max=2, generation=1)
    superblock = Superblock.create(storage, "data/superblock", first)
    superblock.write(second)
    superblock.close()

    opened = Superblock.open(storage, "data/superblock")

    assert (opened.sequence, opened.state, opened.repaired_copies) == (2, second, ())
    assert Path("data/superblock").stat().st_size == 4 * 4096
    opened.close()


def test_dropped_bytes_are_read_from_the_disk_again(directory: str) -> None:
    """After a drop the kernel has nothing of the file in memory, and has to ask the disk."""
    file = FileStorage().create(f"{directory}/file")
    data = os.urandom(SEGMENT_BYTES)
    file.write(0, data)
    file.sync()
    assert _is_cached(file.path), "what was written is cached, and the file system tells it"
    file.drop_cached(0, SEGMENT_BYTES)
    assert not _is_cached(file.path)
    assert file.read(0, SEGMENT_BYTES) == data
    file.close()
    with pytest.raises(ValueError, match="is closed"):
        file.drop_cached(0, SEGMENT_BYTES)


def _is_cached(path: str) -> bool:
    """Whether the kernel has any page of a file in memory. Asking reads nothing: a read that must
    not wait begins one all the same, which a fast disk may have ended before it returns."""
    pages = SEGMENT_BYTES // mmap.PAGESIZE
    found = (ctypes.c_ubyte * pages)()
    with open(path, "r+b") as file, mmap.mmap(file.fileno(), SEGMENT_BYTES) as mapped:
        held = ctypes.c_char.from_buffer(mapped)
        answer = _LIBC.mincore(ctypes.byref(held), ctypes.c_size_t(SEGMENT_BYTES), found)
        del held  # or the mapping could not be closed
    assert answer == 0, os.strerror(ctypes.get_errno())
    return any(each & 1 for each in found)
