"""Replicas remember how far each other's data directories had come, and refuse older copies."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from coordinator.peers.hello import NO_DISK, WIRE_VERSION, DiskMark, Hello, HelloRefusal
from coordinator.peers.known_disks import DISKS_REMEMBERED_MAX, KnownDisks
from tests.coordinator.peers.peer_trial import config, free_addresses, restarted, serving, until

FIRST, SECOND, THIRD = (name.ljust(16) for name in (b"first start", b"second start", b"third"))
MARK = DiskMark(b"d" * 16, 7, 6, 0, 40, 40, FIRST)
BEFORE = Hello(b"c" * 16, WIRE_VERSION, 1, 3, b"l" * 32, FIRST, 0, disk=MARK)


def said(boot_nonce: bytes, mark: DiskMark = MARK, **changes: Any) -> Hello:
    """Return what a start says, whose directory has come to the mark with these changes."""
    disk = replace(mark, boot_nonce=boot_nonce, **changes)
    return replace(BEFORE, boot_nonce=boot_nonce, disk=disk)


AFTER = said(SECOND)


def known(*hellos: Hello) -> KnownDisks:
    """Return what a replica knows that has accepted these hellos."""
    disks = KnownDisks()
    for hello in hellos:
        assert disks.judge(hello) is None
    return disks


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"view": 6}, "it knows view 6, and told of 7 before"),
        ({"log_view": 5}, "it knows the log of view 5, and told of 6 before"),
        ({"last_sequence": 39}, "its journal reaches record 39, and had reached 40 before"),
        ({"view": 6, "damaged_start": 9}, "it knows view 6, and told of 7 before"),
    ],
)
def test_a_start_that_forgot_something_is_refused(changes: dict[str, Any], says: str) -> None:
    """A vote, a log or a record that was durable before a restart must be there after it."""
    disks = known(BEFORE)
    for _ in range(2):
        refusal = disks.judge(said(SECOND, **changes))
        assert refusal is not None
        assert refusal.reason is HelloRefusal.OLDER_DIRECTORY
        assert says in refusal.detail
        assert "start replica 1 with an empty directory" in refusal.detail
    assert disks.judge(AFTER) is None, "the directory itself is still welcome"


@pytest.mark.parametrize(
    "after",
    [
        AFTER,
        said(SECOND, view=9, log_view=9, journal_sequence=90, last_sequence=90),
        said(SECOND, journal_sequence=39),
        said(SECOND, damaged_start=9, journal_sequence=12, last_sequence=12),
        said(SECOND, DiskMark(b"e" * 16)),
        replace(AFTER, disk=NO_DISK),
    ],
    ids=["same", "further", "damaged record", "damaged end", "another directory", "nothing"],
)
def test_a_start_that_forgot_nothing_is_welcome(after: Hello) -> None:
    """Progress, damage that the start found, an empty directory and older builds pass."""
    assert known(BEFORE).judge(after) is None


def test_reports_count_like_hellos() -> None:
    """What a replica told while it ran is held against a later start, in whatever order it came."""
    disks = known(BEFORE)
    disks.heard(1, replace(MARK, journal_sequence=90))
    disks.heard(1, replace(MARK, journal_sequence=60))
    assert disks.judge(said(SECOND, last_sequence=89)) is not None
    assert disks.judge(said(SECOND, last_sequence=90)) is None


def test_a_late_hello_of_the_same_start_changes_nothing() -> None:
    """A replica connects in both directions, and what it said first may arrive last."""
    disks = known(BEFORE, said(FIRST, journal_sequence=90), BEFORE)
    assert disks.judge(said(SECOND, last_sequence=89)) is not None


def test_a_journal_that_lost_its_end_counts_from_there() -> None:
    """The damaged start is remembered on the disk, so whoever missed it accepts later starts, too.

    What the journal has had since then must not be lost again.
    """
    shorter: Any = {"damaged_start": 9, "journal_sequence": 12, "last_sequence": 12}
    for disks in (known(BEFORE, said(SECOND, **shorter)), known(BEFORE)):
        third = said(THIRD, **shorter)
        assert disks.judge(third) is None
    assert known(third).judge(said(FIRST, damaged_start=9, last_sequence=11)) is not None


def test_late_words_of_an_earlier_start_are_left_out() -> None:
    """A stream of the process before may end after the new one's hello was accepted."""
    shorter = said(SECOND, damaged_start=9, journal_sequence=12, last_sequence=12)
    disks = known(BEFORE, shorter)
    disks.heard(1, replace(MARK, journal_sequence=90))
    assert disks.judge(replace(shorter, boot_nonce=THIRD)) is None


def test_a_late_report_brings_no_older_directory_back() -> None:
    """An earlier process had another directory; its last report comes after the new one voted."""
    present = said(SECOND, DiskMark(b"e" * 16, 8, 8, 0, 3, 3))
    disks = known(present)
    disks.heard(1, MARK)
    assert disks.judge(said(THIRD, present.disk)) is None


def test_a_late_hello_of_an_earlier_start_takes_nothing_back() -> None:
    """The answer of the process before may wait on a link while the next one is accepted."""
    disks = known(BEFORE, AFTER, BEFORE)
    disks.heard(1, replace(AFTER.disk, journal_sequence=90))
    assert disks.judge(said(THIRD, last_sequence=89)) is not None


def test_a_directory_that_was_replaced_does_not_come_back() -> None:
    """After a lost disk the replica votes with the new directory; the old one has missed that."""
    blank = replace(AFTER, disk=NO_DISK)
    disks = known(BEFORE, blank)
    disks.heard(1, DiskMark(b"e" * 16, 8, 8, 0, 3, 3, SECOND))
    refusal = disks.judge(said(THIRD, view=9))
    assert refusal is not None
    assert "the replica has voted with another one since" in refusal.detail


def test_a_directory_without_a_vote_replaces_nothing() -> None:
    """A volume that was not mounted once is welcome again: its replica told no other directory."""
    blank = replace(AFTER, disk=NO_DISK)
    assert known(BEFORE, blank).judge(said(THIRD)) is None


def test_the_directories_of_others_do_not_matter() -> None:
    """Each replica is judged by what it told itself."""
    other = replace(said(SECOND, view=1), replica_id=2)
    assert known(BEFORE).judge(other) is None


def test_memory_is_bounded() -> None:
    """However often a disk is replaced, a replica costs a fixed number of marks."""
    disks = KnownDisks()
    for number in range(3 * DISKS_REMEMBERED_MAX):
        nonce = number.to_bytes(16, "big")
        assert disks.judge(said(nonce, disk_id=nonce)) is None
    assert (
        disks.judge(said(SECOND, disk_id=(3 * DISKS_REMEMBERED_MAX - 2).to_bytes(16))) is not None
    )
    assert disks.judge(said(SECOND, disk_id=(0).to_bytes(16))) is None


async def test_neither_side_speaks_to_an_older_copy() -> None:
    """Both links between a replica and one that came back with an older directory are refused."""
    addresses = free_addresses()
    first, second = config(addresses, 0), config(addresses, 1)
    again, third = restarted(second), restarted(second)
    before_mark = replace(MARK, boot_nonce=second.boot_nonce)
    older = replace(MARK, boot_nonce=again.boot_nonce, last_sequence=39)
    async with serving(first) as trial:
        async with serving(second, disk=lambda: before_mark) as before:
            await before.until_connected(0)
            await trial.until_connected(1)
        async with serving(again, disk=lambda: older) as after:
            assert (await after.until_refused(0)).refusal is HelloRefusal.OLDER_DIRECTORY
            assert (await trial.until_refused(1)).refusal is HelloRefusal.OLDER_DIRECTORY
            await until(lambda: not trial.status(1).is_heard)
            assert trial.status(1).refused_hello == "older_directory"
        async with serving(third, disk=lambda: MARK) as back:
            await back.until_connected(0)
            await trial.until_connected(1)
