"""A small file that is replaced in place: a crash or rot leaves one of the last two contents."""

from __future__ import annotations

import errno
from contextlib import suppress
from typing import Final, NoReturn

import pytest

from coordinator.journal.errors import NoSpace
from coordinator.replica.slot_file import (
    CONTENT_BYTES_MAX,
    SLOT_BYTES,
    SLOTS,
    Slot,
    SlotFile,
    decode_slot,
    encode_slot,
)
from testkit.memory_storage import Loss, MemoryStorage, SimulatedCrash
from viewstamp.format import FormatError, FormatVersionError
from viewstamp.format.prepare import checksum_of

PATH: Final = "/data/small"
FIRST, SECOND, THIRD = b"first", b"second", b"third" * 500
STEPS_MAX: Final = 12
_CHECKED: Final = (b"VSKD\2\0" + encode_slot(Slot(9, SECOND))[22:]).ljust(SLOT_BYTES - 16, b"\0")
LATER_VERSION: Final = checksum_of(_CHECKED) + _CHECKED


def read(disk: MemoryStorage) -> bytes | None:
    """Return what a new process finds."""
    return SlotFile(disk, PATH).read()


def written(*contents: bytes) -> MemoryStorage:
    """Return a disk on which one process has written these contents."""
    disk = MemoryStorage()
    file = SlotFile(disk, PATH)
    for content in contents:
        file.write(content)
    return disk


@pytest.mark.parametrize("contents", [[FIRST], [FIRST, SECOND], [FIRST, SECOND, THIRD], [b""]])
def test_the_last_content_is_found(contents: list[bytes]) -> None:
    """A new process finds what was written last, also after a loss of power; the size is fixed."""
    disk = written(*contents)
    disk.crash(Loss.DROP)
    assert read(disk) == contents[-1]
    assert len(disk.content(PATH)) == SLOTS * SLOT_BYTES


def test_a_missing_file_is_no_error() -> None:
    """The directory of an earlier build has no such file."""
    assert read(MemoryStorage()) is None


@pytest.mark.parametrize("loss", Loss)
@pytest.mark.parametrize("crash_at", range(STEPS_MAX))
def test_a_crash_leaves_what_was_durable_or_more(loss: Loss, crash_at: int) -> None:
    """Power is lost before any step: no content that was durable is taken back."""
    for seed in range(5):
        disk = MemoryStorage()
        disk.crash_at = crash_at
        file = SlotFile(disk, PATH)
        done = 0
        with suppress(SimulatedCrash):
            for content in (FIRST, SECOND, THIRD):
                file.write(content)
                done += 1
        disk.crash(loss, seed)
        assert read(disk) in [None, FIRST, SECOND, THIRD][done : done + 2]


def test_the_steps_of_a_crash_are_all_tried() -> None:
    """The three writes take fewer steps than crashes are tried at."""
    assert 8 < written(FIRST, SECOND, THIRD).steps < STEPS_MAX


@pytest.mark.parametrize("crash_at", range(5))
def test_what_a_killed_process_left_is_made_durable_first(crash_at: int) -> None:
    """A killed process leaves a slot in the page cache alone. The next one writes over the other
    slot, and a loss of power then leaves one of them."""
    for seed in range(20):
        disk = written(FIRST)
        killed = SlotFile(disk, PATH)
        killed.read()
        disk.crash_at = disk.steps + 3  # it has settled, and written; the sync is missing
        with pytest.raises(SimulatedCrash):
            killed.write(SECOND)
        disk.crash_at = None
        disk.restart_process()
        following = SlotFile(disk, PATH)
        assert following.read() == SECOND
        disk.crash_at = disk.steps + crash_at
        with suppress(SimulatedCrash):
            following.write(THIRD)
        disk.crash(Loss.PARTLY, seed)
        assert read(disk) in (FIRST, SECOND, THIRD)


@pytest.mark.parametrize("offset", [0, 16, 24, 32, 40, SLOT_BYTES - 1])
def test_damage_is_seen(offset: int) -> None:
    """A changed byte anywhere in a slot costs that slot; with both gone the file says so."""
    disk = written(FIRST, SECOND)
    disk.flip(PATH, SLOT_BYTES + offset)
    assert read(disk) == FIRST
    disk.flip(PATH, offset)
    with pytest.raises(FormatError):
        read(disk)


def test_a_damaged_file_is_written_again() -> None:
    """Damage ends with the next write."""
    disk = written(FIRST, SECOND)
    disk.flip(PATH, 0)
    disk.flip(PATH, SLOT_BYTES)
    file = SlotFile(disk, PATH)
    with pytest.raises(FormatError):
        file.read()
    file.write(THIRD)
    assert read(disk) == THIRD


@pytest.mark.parametrize(
    ("content", "error"),
    [
        (b"", FormatError),
        (b"V" * 100, FormatError),
        (bytes(SLOTS * SLOT_BYTES), FormatError),
        (LATER_VERSION + bytes(SLOT_BYTES), FormatVersionError),
    ],
    ids=["empty", "short", "zeros", "later version"],
)
def test_other_files_are_told(content: bytes, error: type[Exception]) -> None:
    """What is no such file is an error with a reason, and never a content."""
    disk = written(FIRST)
    disk.replace(PATH, content)
    with pytest.raises(error):
        read(disk)


def test_the_bytes_of_a_slot_are_pinned() -> None:
    """A slot that this build reads is read by every later one."""
    slot = encode_slot(Slot(1, FIRST))
    assert slot.rstrip(b"\0").hex() == (
        "d2053df46ea048b43428e0ac3dcdabdb56534b4401000000010000000000000005000000000000006669727374"
    )
    assert len(slot) == SLOT_BYTES


def test_a_slot_is_bounded() -> None:
    """The largest content fits, and no larger one is written."""
    largest = bytes(CONTENT_BYTES_MAX)
    assert decode_slot(encode_slot(Slot(1, largest))).content == largest
    with pytest.raises(AssertionError):
        SlotFile(MemoryStorage(), PATH).write(largest + b"x")


def test_a_full_disk_stops_the_first_write_alone() -> None:
    """Without room nothing is left behind; a file that exists needs no more room."""
    disk = MemoryStorage(capacity_bytes=SLOT_BYTES)
    file = SlotFile(disk, PATH)
    with pytest.raises(NoSpace):
        file.write(FIRST)
    assert disk.paths() == []
    disk.capacity_bytes = SLOTS * SLOT_BYTES
    file.write(FIRST)
    disk.capacity_bytes = 0
    file.write(SECOND)
    assert read(disk) == SECOND


def test_what_follows_a_first_write_that_failed_counts_as_newer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The file is there before its name is durable: a write after that failure replaces it."""
    disk = MemoryStorage()
    file = SlotFile(disk, PATH)
    with monkeypatch.context() as failing, pytest.raises(NoSpace):
        failing.setattr(disk, "sync_directory", _no_room)
        file.write(FIRST)
    file.write(SECOND)
    assert read(disk) == SECOND


def _no_room(path: str) -> NoReturn:
    raise OSError(errno.ENOSPC, "No space left on device", path)


def test_what_a_crash_left_of_a_first_write_is_removed() -> None:
    """The file has no name before it is durable, and its first content may be written again."""
    disk = MemoryStorage()
    disk.create(f"{PATH}.tmp").sync()
    SlotFile(disk, PATH).write(FIRST)
    assert read(disk) == FIRST
    assert disk.paths() == [PATH]


class UnreadableSlot(MemoryStorage):
    """A disk that cannot read one slot."""

    bad_slot = 0

    def check_read(self, path: str, offset: int, size: int) -> None:
        """Fail at its sectors."""
        if offset == self.bad_slot * SLOT_BYTES:
            raise OSError(errno.EIO, "Input/output error")


@pytest.mark.parametrize(("bad_slot", "found"), [(0, SECOND), (1, FIRST)])
def test_a_slot_that_cannot_be_read_is_a_damaged_one(bad_slot: int, found: bytes) -> None:
    """The other one counts."""
    disk = UnreadableSlot()
    file = SlotFile(disk, PATH)
    file.write(FIRST)
    file.write(SECOND)
    disk.bad_slot = bad_slot
    assert read(disk) == found
