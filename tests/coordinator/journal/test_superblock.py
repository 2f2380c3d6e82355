"""The superblock: four copies, quorums, forks, and a crash at every step."""

from __future__ import annotations

import errno
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coordinator.journal import (
    NoSpace,
    Superblock,
    SuperblockExists,
    SuperblockFailed,
    SuperblockFork,
    SuperblockNotConnected,
    SuperblockNotFound,
    SuperblockNotMonotonic,
    SuperblockQuorumLost,
)
from coordinator.journal.errors import SuperblockError
from testkit.journal_builders import OTHER_CLUSTER_ID
from testkit.memory_storage import Loss, MemoryStorage, SimulatedCrash
from tests.coordinator.journal.superblock_states import (
    ADMITTED,
    FIRST,
    NEWCOMER,
    STATES,
    history,
)
from viewstamp.format import FormatError, FormatVersionError
from viewstamp.format.epoch_members import EpochMembers
from viewstamp.format.prepare import checksum_of
from viewstamp.format.superblock import (
    COPIES,
    COPY_BYTES,
    NO_PARENT,
    SuperblockCopy,
    SuperblockState,
    decode_copy,
    encode_copy,
    seal_state,
)

PATH = "data/superblock"
VARIANTS = [(Loss.DROP, 0), (Loss.KEEP, 0), *((Loss.PARTLY, seed) for seed in range(6))]


def stored(*copies: SuperblockCopy | None) -> MemoryStorage:
    """A disk with these four copies; None means a damaged one."""
    storage = MemoryStorage()
    sectors = [
        b"\x5a" * COPY_BYTES if copy is None else encode_copy(copy, number)
        for number, copy in enumerate(copies)
    ]
    storage.replace(PATH, b"".join(sectors))
    return storage


def test_an_initial_member_that_missed_the_bootstrap_is_an_initial_member() -> None:
    """A replica that is taken for a newcomer, and finds itself in the first entry, has its vote."""
    superblock = Superblock.create(MemoryStorage(), PATH, NEWCOMER)
    superblock.write(replace(NEWCOMER, voting_view=0))
    assert superblock.state.voting_view == 0


def test_a_newcomer_is_admitted_once() -> None:
    """The admission sets the voting view, and nothing takes it back afterwards."""
    storage = MemoryStorage()
    superblock = Superblock.create(storage, PATH, NEWCOMER)
    superblock.write(ADMITTED)
    superblock.close()
    superblock = Superblock.open(storage, PATH)
    assert superblock.state == ADMITTED
    with pytest.raises(SuperblockNotMonotonic, match="voting_view fell from 5 to 0"):
        superblock.write(replace(ADMITTED, voting_view=0))
    superblock.write(replace(ADMITTED, voting_view=7))


def test_create_write_open() -> None:
    """Opening finds each state that was written, with its sequence."""
    storage = MemoryStorage()
    superblock = Superblock.create(storage, PATH, FIRST)
    assert (superblock.sequence, superblock.state) == (1, FIRST)
    for sequence, state in enumerate(STATES[1:], start=2):
        superblock.write(state)
        assert (superblock.sequence, superblock.state) == (sequence, state)
        again = Superblock.open(storage, PATH)
        assert (again.sequence, again.state, again.repaired_copies) == (sequence, state, ())
        again.close()
    assert len(storage.content(PATH)) == COPIES * COPY_BYTES
    superblock.close()


def test_each_copy_is_synced_before_the_next_is_touched() -> None:
    """At most one copy is being written at any moment; otherwise one crash could tear two."""
    storage = MemoryStorage()
    superblock = Superblock.create(storage, PATH, FIRST)
    storage.log.clear()
    superblock.write(STATES[1])
    assert storage.log == [f"write {PATH}", f"sync {PATH}"] * COPIES


def test_creating_and_opening_mind_what_is_there() -> None:
    """Creating never overwrites a superblock, and opening never makes one."""
    storage = MemoryStorage()
    with pytest.raises(SuperblockNotFound, match="no replica was bootstrapped"):
        Superblock.open(storage, PATH)
    assert storage.paths() == []
    Superblock.create(storage, PATH, FIRST)
    with pytest.raises(SuperblockExists, match="bootstrapped already"):
        Superblock.create(storage, PATH, FIRST)


MEMBERS = EpochMembers(1 << 48, (1, 4, 2), (5,), ((4, bytes(range(16))),), 12)
AS_STANDBY = replace(MEMBERS, voters=(4, 2), standbys=(1,))

IMPOSSIBLE: list[tuple[dict[str, Any], str]] = [
    ({"log_view": 1}, "log_view 1 is above view 0"),
    ({"replica_id": 9}, "replica_id 9 is neither below replica_count 3 nor one of the 6 standbys"),
    ({"replica_count": 0}, "replica_count 0"),
    ({"replica_count": 7}, "replica_count 7"),
    ({"cluster_id": b"short"}, "cluster_id is 5 bytes"),
    ({"commit_max": -1}, "commit_max -1"),
    ({"generation": 1 << 64}, "generation"),
    ({"voting_view": 1 << 64}, "voting_view"),
    ({"view": 1 << 48}, "view 281474976710656 is of epoch 1, and its members are unknown"),
    ({"view": 2 << 48, "members": MEMBERS}, "is not of epoch 1, whose members it has"),
    ({"view": 1 << 48, "members": replace(MEMBERS, voters=())}, "0 voters are outside 1..7"),
    ({"view": 1 << 48, "members": AS_STANDBY}, "replica 1 is a standby, but may vote from 0 on"),
]


@pytest.mark.parametrize(("change", "reason"), IMPOSSIBLE)
def test_impossible_states_are_not_written(change: dict[str, Any], reason: str) -> None:
    """Neither creating nor writing lets an impossible state reach the disk."""
    storage = MemoryStorage()
    impossible = replace(FIRST, **change)
    with pytest.raises(ValueError, match=reason):
        Superblock.create(storage, PATH, impossible)
    assert storage.paths() == []


REGRESSIONS: list[dict[str, Any]] = [
    {"view": 2},
    {"log_view": 0},
    {"commit_max": 8},
    {"generation": 1},
    {"cluster_id": OTHER_CLUSTER_ID},
    {"replica_id": 0},
    {"replica_count": 5},
    {"log_view": 4},
    {"view": 1 << 48, "members": MEMBERS, "commit_max": 8},
]


@pytest.mark.parametrize("change", REGRESSIONS)
def test_nothing_promised_is_taken_back(change: dict[str, Any]) -> None:
    """A state that falls behind, or changes identity, is refused and changes nothing."""
    storage = MemoryStorage()
    superblock = Superblock.create(storage, PATH, STATES[3])
    before = storage.snapshot()
    with pytest.raises(SuperblockNotMonotonic):
        superblock.write(replace(STATES[3], **change))
    assert storage.snapshot() == before
    superblock.write(STATES[4])


# --- Choosing ---


A, B, C, D = history(STATES[:4])
OTHER_B = seal_state(replace(STATES[1], view=7), 2, A.checksum)
ORPHAN_B = seal_state(STATES[1], 2, bytes(16))
BACKWARD_C = seal_state(FIRST, 3, B.checksum)
CROOKED = seal_state(replace(FIRST, log_view=1), 1, NO_PARENT)

OPENS: list[tuple[tuple[SuperblockCopy | None, ...], SuperblockCopy, tuple[int, ...]]] = [
    ((B, B, B, B), B, ()),
    ((B, B, B, A), B, (3,)),
    ((B, B, A, A), B, (2, 3)),
    ((B, A, A, A), A, (0,)),
    ((B, B, None, A), B, (2, 3)),
    ((B, None, A, A), A, (0, 1)),
    ((None, B, B, B), B, (0,)),
    ((B, None, B, None), B, (1, 3)),
    ((None, None, B, B), B, (0, 1)),
    ((C, C, C, A), C, (3,)),
]


@pytest.mark.parametrize(("copies", "chosen", "repaired"), OPENS)
def test_two_agreeing_copies_open(
    copies: tuple[SuperblockCopy | None, ...],
    chosen: SuperblockCopy,
    repaired: tuple[int, ...],
) -> None:
    """The newest state with two copies is chosen, and all four copies are brought to it."""
    storage = stored(*copies)
    superblock = Superblock.open(storage, PATH)
    assert (superblock.sequence, superblock.state) == (chosen.sequence, chosen.state)
    assert superblock.repaired_copies == repaired
    assert storage.content(PATH) == stored(chosen, chosen, chosen, chosen).content(PATH)
    superblock.write(replace(superblock.state, view=superblock.state.view + 1))


REFUSALS: list[tuple[tuple[SuperblockCopy | None, ...], type[SuperblockError], str]] = [
    ((None, None, None, None), SuperblockQuorumLost, "damaged, damaged"),
    ((B, None, None, None), SuperblockQuorumLost, "needs 2 equal copies"),
    ((B, None, None, A), SuperblockQuorumLost, "sequence 2, damaged"),
    ((D, C, B, A), SuperblockQuorumLost, "sequence 4, sequence 3"),
    ((C, None, A, A), SuperblockQuorumLost, "sequence 3"),
    ((B, B, OTHER_B, OTHER_B), SuperblockFork, "two different states of sequence 2"),
    ((B, B, B, OTHER_B), SuperblockFork, "two different states"),
    ((OTHER_B, B, A, A), SuperblockFork, "two different states"),
    ((ORPHAN_B, ORPHAN_B, A, A), SuperblockNotConnected, "names 0000"),
    ((ORPHAN_B, A, A, A), SuperblockNotConnected, "names 0000"),
    ((BACKWARD_C, BACKWARD_C, B, B), SuperblockNotMonotonic, "view fell from 1 to 0"),
    ((CROOKED, CROOKED, CROOKED, CROOKED), SuperblockNotMonotonic, "log_view 1 is above view 0"),
]


@pytest.mark.parametrize(("copies", "error", "match"), REFUSALS)
def test_everything_else_is_refused(
    copies: tuple[SuperblockCopy | None, ...], error: type[SuperblockError], match: str
) -> None:
    """Lost quorums, forks and broken histories are told apart, and refusing changes nothing."""
    storage = stored(*copies)
    before = storage.snapshot()
    with pytest.raises(SuperblockError, match=match) as raised:
        Superblock.open(storage, PATH)
    assert type(raised.value) is error
    assert storage.snapshot() == before


def test_every_flipped_byte_is_detected_and_repaired() -> None:
    """Opening notices each flipped byte of one copy, repairs it and shows the same state."""
    storage = MemoryStorage()
    superblock = Superblock.create(storage, PATH, FIRST)
    superblock.write(STATES[3])
    superblock.close()
    pristine = storage.content(PATH)
    for position in range(COPIES * COPY_BYTES):
        storage.flip(PATH, position, 1 << position % 8)
        opened = Superblock.open(storage, PATH)
        assert opened.repaired_copies == (position // COPY_BYTES,), position
        assert opened.state == STATES[3]
        opened.close()
        if position % 64 == 0:
            assert storage.content(PATH) == pristine


@pytest.mark.parametrize("size", [0, COPY_BYTES, 2 * COPY_BYTES - 1])
def test_a_shortened_file_has_lost_its_quorum(size: int) -> None:
    """Copies that are cut off count as damaged."""
    storage = stored(B, B, B, B)
    storage.replace(PATH, storage.content(PATH)[:size])
    with pytest.raises(SuperblockQuorumLost):
        Superblock.open(storage, PATH)


def test_swapped_copies_are_damaged() -> None:
    """A copy in another one's place was misdirected, and is written again."""
    storage = stored(B, B, B, B)
    content = storage.content(PATH)
    swapped = (
        content[COPY_BYTES : 2 * COPY_BYTES] + content[:COPY_BYTES] + content[2 * COPY_BYTES :]
    )
    storage.replace(PATH, swapped)
    assert Superblock.open(storage, PATH).repaired_copies == (0, 1)
    assert storage.content(PATH) == content


def test_a_newer_version_is_not_called_corrupt() -> None:
    """An intact copy of a later format stops opening with a clear message."""
    storage = stored(B, B, B, B)
    sector = encode_copy(B, 0)
    checked = sector[32:36] + b"\x05\0" + sector[38:]
    newer = checksum_of(checked) + sector[16:32] + checked
    storage.replace(PATH, newer + storage.content(PATH)[COPY_BYTES:])
    with pytest.raises(FormatVersionError, match="superblock format version 5"):
        Superblock.open(storage, PATH)


@pytest.mark.parametrize(
    ("offset", "value"), [(38, b"\x01\0"), (40, bytes(8)), (200, b"\x01"), (32, b"VSSX")]
)
def test_impossible_copies_are_refused(offset: int, value: bytes) -> None:
    """A copy with a correct checksum is refused if its reserved bytes or its sequence are wrong."""
    sector = encode_copy(B, 0)
    checked = sector[32:offset] + value + sector[offset + len(value) :]
    with pytest.raises(FormatError):
        decode_copy(checksum_of(checked) + sector[16:32] + checked, 0)


@given(st.binary(max_size=COPY_BYTES), st.integers(min_value=0, max_value=3))
def test_random_bytes_raise_format_errors_only(junk: bytes, copy: int) -> None:
    """Decoding junk raises FormatError, whatever the junk."""
    padded = junk.ljust(COPY_BYTES, b"\0")
    valid = encode_copy(B, copy)
    for sector in (junk, padded, valid[: COPY_BYTES - len(junk)] + junk):
        try:
            decoded = decode_copy(sector, copy)
        except FormatError:
            continue
        assert encode_copy(decoded, copy) == sector


# --- Crashes and failures ---


def run(storage: MemoryStorage, written: list[SuperblockState]) -> None:
    """Create the superblock and write all states, noting what was acknowledged."""
    superblock = Superblock.create(storage, PATH, STATES[0])
    written.append(STATES[0])
    for state in STATES[1:]:
        superblock.write(state)
        written.append(state)


def test_a_crash_at_every_step_loses_nothing_acknowledged() -> None:
    """After any crash the state is the last acknowledged one, or the one being written.

    Opening survives a crash at each of its own steps, and the state that it returned stays.
    """
    counting = MemoryStorage()
    run(counting, [])
    for step in range(counting.steps):
        for loss, seed in VARIANTS:
            storage, written = MemoryStorage(), list[SuperblockState]()
            storage.crash_at = step
            with pytest.raises(SimulatedCrash):
                run(storage, written)
            storage.crash(loss, seed)
            if not written and not storage.exists(PATH):
                assert Superblock.create(storage, PATH, FIRST).state == FIRST
                continue
            superblock = open_through_crashes(storage)
            acknowledged = len(written)
            assert superblock.state in STATES[max(acknowledged - 1, 0) : acknowledged + 1]
            storage.crash(Loss.DROP)
            again = Superblock.open(storage, PATH)
            assert (again.sequence, again.state) == (superblock.sequence, superblock.state)
            assert again.repaired_copies == ()
            again.write(replace(again.state, view=9))
            assert Superblock.open(storage, PATH).state.view == 9


def open_through_crashes(storage: MemoryStorage) -> Superblock:
    """Crash opening at its first step, then at its second, and so on until it succeeds."""
    step = 0
    while True:
        storage.crash_at = storage.steps + step
        try:
            superblock = Superblock.open(storage, PATH)
        except SimulatedCrash:
            storage.crash(Loss.PARTLY, seed=step)
            step += 1
            continue
        storage.crash_at = None
        return superblock


def test_a_failed_sync_ends_the_superblock() -> None:
    """After a failed sync every write raises, and a restart does not believe the page cache."""
    storage = MemoryStorage()
    superblock = Superblock.create(storage, PATH, FIRST)
    storage.failing_syncs = {storage.syncs + 1}
    for _ in range(2):
        with pytest.raises(SuperblockFailed, match="process must end"):
            superblock.write(STATES[1])
    assert superblock.state == FIRST

    restarted = Superblock.open(storage, PATH)
    shown = (restarted.sequence, restarted.state)
    storage.crash(Loss.DROP)
    again = Superblock.open(storage, PATH)
    assert (again.sequence, again.state) == shown


def test_copies_that_only_the_page_cache_has_are_written_again() -> None:
    """Opening makes every copy durable, readable or not: afterwards all four are on the disk.

    A write fails at its second copy and the next process at its first; both leave visible copies.
    """
    storage = MemoryStorage()
    superblock = Superblock.create(storage, PATH, FIRST)
    storage.failing_syncs = {storage.syncs + 1, storage.syncs + 2}
    with pytest.raises(SuperblockFailed):
        superblock.write(STATES[1])
    with pytest.raises(SuperblockFailed):
        Superblock.open(storage, PATH)
    assert Superblock.open(storage, PATH).state == STATES[1]

    storage.crash(Loss.DROP)

    again = Superblock.open(storage, PATH)
    assert (again.state, again.repaired_copies) == (STATES[1], ())


class ForgetfulDisk(MemoryStorage):
    """Have some sectors take writes and syncs without complaint, and read back as garbage."""

    bad_offsets: frozenset[int] = frozenset()

    def check_read(self, path: str, offset: int, size: int) -> None:
        """Fail to read a bad copy."""
        if path == PATH and offset in self.bad_offsets:
            raise OSError(errno.EIO, "Input/output error")


@pytest.mark.parametrize(("bad_copies", "survives"), [(1, True), (2, False), (4, False)])
def test_three_copies_must_read_back(bad_copies: int, survives: bool) -> None:
    """A write counts if three copies verify; with fewer it fails and ends the superblock."""
    storage = ForgetfulDisk()
    superblock = Superblock.create(storage, PATH, FIRST)
    storage.bad_offsets = frozenset(copy * COPY_BYTES for copy in range(bad_copies))
    if survives:
        superblock.write(STATES[1])
        assert superblock.state == STATES[1]
        assert Superblock.open(storage, PATH).repaired_copies == (0,)
    else:
        with pytest.raises(SuperblockFailed, match=f"only {COPIES - bad_copies} copies"):
            superblock.write(STATES[1])
        assert superblock.state == FIRST


def test_a_full_disk_stops_only_creation() -> None:
    """Creating needs space and says so; once created, every write fits for ever."""
    storage = MemoryStorage(capacity_bytes=COPIES * COPY_BYTES - 1)
    with pytest.raises(NoSpace, match="free space"):
        Superblock.create(storage, PATH, FIRST)
    storage.capacity_bytes = COPIES * COPY_BYTES
    superblock = Superblock.create(storage, PATH, FIRST)
    for state in STATES[1:]:
        superblock.write(state)
    assert superblock.state == STATES[-1]
