"""What is remembered of directories goes through the disk: older copies stay refused, and no
healthy replica is."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Final

import pytest

from coordinator.peers.hello import NO_DISK, WIRE_VERSION, DiskMark, Hello
from coordinator.peers.known_disks import (
    DISKS_REMEMBERED_MAX,
    REPLICAS_REMEMBERED_MAX,
    KnownDisks,
    RememberedReplica,
)
from coordinator.peers.known_disks_codec import (
    MEMORY_BYTES_MAX,
    MemoryOwner,
    decode_memory,
    encode_memory,
)
from viewstamp.format import FormatError

OWNER: Final = MemoryOwner(b"c" * 16, 0)
FIRST, SECOND, THIRD = (name.ljust(16) for name in (b"first start", b"second start", b"third"))
OLD: Final = DiskMark(b"o" * 16, 7, 6, 0, 40, 40)
NEW: Final = DiskMark(b"n" * 16, 8, 8, 0, 3, 3)


def hello(boot_nonce: bytes, mark: DiskMark = OLD) -> Hello:
    """Return what a start of replica 1 says, whose directory has come this far."""
    disk = replace(mark, boot_nonce=boot_nonce) if mark.disk_id else mark
    return Hello(OWNER.cluster_id, WIRE_VERSION, 1, 3, b"l" * 32, boot_nonce, 0, disk=disk)


def restarted(disks: KnownDisks) -> KnownDisks:
    """Return what the next process of the replica that remembers knows."""
    content = encode_memory(OWNER, disks.remembered())
    assert len(content) <= MEMORY_BYTES_MAX
    again = KnownDisks()
    again.restore(decode_memory(OWNER, content))
    return again


def told(*hellos: Hello, restarts_after: Sequence[int] = ()) -> KnownDisks:
    """Return what a replica knows that accepted these hellos, and restarted after some of them."""
    disks = KnownDisks()
    for number, each in enumerate(hellos):
        assert disks.judge(each) is None
        if number in restarts_after:
            disks = restarted(disks)
    return disks


@pytest.mark.parametrize(
    ("older", "says"),
    [
        (replace(OLD, view=6), "it knows view 6, and told of 7 before"),
        (replace(OLD, log_view=5), "it knows the log of view 5, and told of 6 before"),
        (replace(OLD, last_sequence=39), "its journal reaches record 39, and had reached 40"),
    ],
)
def test_an_older_copy_is_refused_after_a_restart(older: DiskMark, says: str) -> None:
    """The next process of the replica that heard of a directory refuses an older copy of it."""
    disks = told(hello(FIRST), restarts_after=[0])
    refusal = disks.judge(hello(SECOND, older))
    assert refusal is not None
    assert says in refusal.detail


def test_reports_count_after_a_restart() -> None:
    """What a report told last is kept, and not the hello alone."""
    disks = told(hello(FIRST))
    disks.heard(1, replace(OLD, boot_nonce=FIRST, journal_sequence=90))
    assert restarted(disks).judge(hello(SECOND, replace(OLD, last_sequence=89))) is not None


def test_a_replaced_directory_is_refused_after_a_restart() -> None:
    """That a replica has voted with another directory since is kept, too."""
    disks = told(hello(FIRST), hello(SECOND, NEW), restarts_after=[0, 1])
    refusal = disks.judge(hello(THIRD, replace(OLD, view=9)))
    assert refusal is not None
    assert "the replica has voted with another one since" in refusal.detail


# --- Healthy replicas ---

EMPTIED: Final = [hello(FIRST), hello(SECOND, NO_DISK), hello(SECOND, NEW), hello(THIRD, NEW)]
DAMAGED: Final = replace(OLD, damaged_start=9, journal_sequence=12, last_sequence=12)


@pytest.mark.parametrize(
    "hellos",
    [
        [hello(FIRST), hello(FIRST)],
        [hello(FIRST), hello(SECOND)],
        [hello(FIRST), hello(SECOND, replace(OLD, view=9, log_view=9, last_sequence=90))],
        EMPTIED,
        [hello(FIRST), hello(SECOND, NO_DISK), hello(THIRD)],
        [hello(FIRST), hello(SECOND, DAMAGED), hello(THIRD, DAMAGED)],
        [hello(FIRST, replace(OLD, journal_sequence=0)), hello(SECOND)],
    ],
    ids=[
        "goes on",
        "restarts",
        "has come further",
        "emptied",
        "not mounted once",
        "damaged end",
        "first level",
    ],
)
def test_a_healthy_replica_is_welcome_after_restarts(hellos: list[Hello]) -> None:
    """Whenever the replica that remembers restarts: who has forgotten nothing is not refused."""
    for restarts_after in ([0], [0, 1], [0, 1, 2], list(range(len(hellos)))):
        told(*hellos, restarts_after=restarts_after)


def test_words_that_were_on_their_way_at_a_restart_are_welcome() -> None:
    """A hello was made before the last report that an earlier process took, and arrives at the
    next process: the replica that says it has forgotten nothing."""
    disks = told(hello(FIRST))
    disks.heard(1, replace(OLD, boot_nonce=FIRST, view=8, journal_sequence=90))
    assert restarted(disks).judge(hello(FIRST)) is None


def test_an_older_memory_refuses_no_healthy_replica() -> None:
    """A memory that was put back, or was kept while an earlier build ran, knows only less."""
    earlier = told(hello(FIRST))
    for later in (hello(SECOND, replace(OLD, view=9, last_sequence=90)), hello(SECOND, NEW)):
        disks = restarted(earlier)
        assert disks.judge(later) is None
        assert restarted(disks).judge(replace(later, boot_nonce=THIRD)) is None


def test_the_memory_stays_small_and_knows_the_present_directory() -> None:
    """However often a disk is replaced, the present directory is welcome, and the earlier not."""
    disks = KnownDisks()
    for number in range(1, 3 * DISKS_REMEMBERED_MAX):
        nonce = number.to_bytes(16)
        assert disks.judge(hello(nonce, replace(NEW, disk_id=nonce))) is None
        disks = restarted(disks)
    (known,) = disks.remembered()
    assert len(known.marks) == DISKS_REMEMBERED_MAX
    assert disks.judge(hello(FIRST, known.marks[-1])) is not None, "its journal is shorter"
    assert disks.judge(hello(FIRST, replace(known.marks[-1], last_sequence=3))) is None
    assert disks.judge(hello(SECOND, replace(known.marks[-2], last_sequence=3))) is not None


# --- Changes ---


@pytest.mark.parametrize(
    ("mark", "told_of"),
    [
        (OLD, []),
        (replace(OLD, journal_sequence=39), []),
        (replace(OLD, journal_sequence=41), [False]),
        (replace(OLD, view=8), [True]),
        (replace(OLD, log_view=7), [True]),
        (DAMAGED, [True]),
        (NEW, [True]),
        (NO_DISK, []),
    ],
)
def test_changes_are_told(mark: DiskMark, told_of: list[bool]) -> None:
    """Whoever keeps the memory hears of each change, and whether a promise is in it."""
    changes: list[bool] = []
    disks = KnownDisks(changes.append)
    disks.judge(hello(FIRST))
    assert changes == [False, True], "a start, and its directory"
    changes.clear()
    disks.heard(1, replace(mark, boot_nonce=FIRST))
    assert changes == told_of


def test_a_new_start_is_told() -> None:
    """Late words of the present start are known by its nonce, so the nonce is kept, too."""
    changes: list[bool] = []
    disks = KnownDisks(changes.append)
    disks.judge(hello(FIRST))
    changes.clear()
    disks.judge(hello(SECOND))
    disks.judge(hello(SECOND))
    assert changes == [False]


# --- Bytes ---


def largest() -> tuple[RememberedReplica, ...]:
    """Return all that a memory can hold."""
    most = [2**64 - 1 - number for number in range(DISKS_REMEMBERED_MAX)]
    marks = [DiskMark(bytes([n % 256]) * 16, n, n, n, n) for n in most]
    others = range(1, REPLICAS_REMEMBERED_MAX + 1)
    return tuple(RememberedReplica(each, FIRST, tuple(marks)) for each in others)


def test_ids_that_are_never_given_again_are_forgotten() -> None:
    """A cluster may have had any number of members: those of the present are kept, and strangers
    beyond a bound are not remembered, so that the memory always fits its file."""
    known = KnownDisks()
    for replica in range(1, 40):
        assert known.judge(replace(hello(FIRST), replica_id=replica)) is None
        known.heard(replica, replace(OLD, boot_nonce=FIRST))
    assert len(known.remembered()) == REPLICAS_REMEMBERED_MAX
    known.keep({2, 3, 99})
    assert [each.replica_id for each in known.remembered()] == [2, 3]


def test_the_largest_memory_comes_back() -> None:
    """All replicas with all directories and the largest numbers take the bytes that are allowed."""
    content = encode_memory(OWNER, largest())
    assert len(content) == MEMORY_BYTES_MAX
    assert decode_memory(OWNER, content) == largest()


ONE: Final = (RememberedReplica(1, FIRST, (OLD,)),)
CONTENT: Final = encode_memory(OWNER, ONE)


def test_the_bytes_of_a_memory_are_pinned() -> None:
    """A memory that this build reads is read by every later one."""
    assert CONTENT.hex() == (
        "6363636363636363636363636363636300000000010000000100000001000000666972737420737461727420"
        "202020206f6f6f6f6f6f6f6f6f6f6f6f6f6f6f6f070000000000000006000000000000000000000000000000"
        "2800000000000000"
    )


@pytest.mark.parametrize(
    ("spoilt", "says"),
    [
        (lambda: encode_memory(replace(OWNER, replica_id=2), ONE), "it is of replica 2 of"),
        (lambda: encode_memory(replace(OWNER, cluster_id=b"x" * 16), ONE), "cluster 7878"),
        (lambda: CONTENT[:-1], "it ends too early"),
        (lambda: CONTENT[:10], "it ends too early"),
        (lambda: b"", "it ends too early"),
        (lambda: CONTENT + b"x", "it has 97 bytes, must have 96"),
        (lambda: encode_memory(OWNER, ONE * 2), "its replicas do not ascend"),
        (lambda: encode_memory(OWNER, (RememberedReplica(1, FIRST, ()),)), "0 directories"),
        (lambda: encode_memory(OWNER, (RememberedReplica(1, FIRST, (OLD,) * 17),)), "17 direct"),
        (lambda: encode_memory(OWNER, ONE * 14), "it tells of 14 replicas"),
    ],
)
def test_bytes_that_are_no_memory_of_this_replica(spoilt: Callable[[], bytes], says: str) -> None:
    """The memory of another replica, copied here with its directory, is not taken; nor is rot."""
    with pytest.raises(FormatError, match=says):
        decode_memory(OWNER, spoilt())
