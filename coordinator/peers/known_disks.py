"""What this process has heard of the data directories of the other replicas.

A replica must never come back with an older copy of its directory: it has forgotten votes and
entries that others count on, and the protocol trusts what a replica once made durable. The copy
cannot know that, so the others remember. Each replica tells in hellos and reports how far its
directory has come, and one that comes back behind that is refused.

A start that loses records of unknown ops notes damage in its superblock, wherever they lay, and is
excused for a shorter journal: its head is uncertain, so it denies nothing that may have come after.

Whoever makes the memory is told of each change, and may keep it and give it to the next process
(`coordinator.app.disk_memory`). What is remembered are facts about a directory that no later event
makes untrue, so an older memory refuses nobody wrongly. Only what a replica says itself counts.

The memory misses what no report told: the last moments before a copy was put back, and what
happened while the two replicas did not hear each other.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, field
from typing import Final

from coordinator.peers.hello import DiskMark, Hello, HelloRefusal, RefusedHello
from viewstamp.format.epoch_members import STANDBYS_MAX, VOTERS_MAX

# Directories that one replica has had. The oldest is forgotten.
DISKS_REMEMBERED_MAX: Final = 16
# The other replicas of an epoch, one that was just removed, and guests of a later epoch. Strangers
# beyond them are not judged, and have no part in anything.
REPLICAS_REMEMBERED_MAX: Final = VOTERS_MAX + STANDBYS_MAX
# Starts of one replica whose late words are told from those of the present one.
STARTS_REMEMBERED_MAX: Final = 16


@dataclass(frozen=True, slots=True)
class RememberedReplica:
    """What is known of one replica: its directories, the newest last, and its last start.

    Words of that start are not judged, however late they come. The marks name no start.
    """

    replica_id: int
    boot_nonce: bytes
    marks: tuple[DiskMark, ...]


@dataclass(slots=True)
class _Replica:
    """The marks of a replica's directories by id, the newest directory last.

    `boot_nonce` is that of the start whose hello was accepted last, `earlier` those before it.
    """

    boot_nonce: bytes = b""
    earlier: deque[bytes] = field(default_factory=lambda: deque(maxlen=STARTS_REMEMBERED_MAX))
    marks: dict[bytes, DiskMark] = field(default_factory=dict)

    def remember(self, mark: DiskMark) -> None:
        self.marks[mark.disk_id] = mark
        if len(self.marks) > DISKS_REMEMBERED_MAX:
            del self.marks[next(iter(self.marks))]


def _nobody_keeps(is_promise: bool) -> None:
    """Let the memory end with the process."""


class KnownDisks:
    """Judges hellos by what was heard before."""

    def __init__(self, changed: Callable[[bool], None] = _nobody_keeps) -> None:
        """`changed` is called when there is more to remember.

        It is told whether that is a promise (a view, a log view, another directory, damage at a
        start) or progress alone, which comes often.
        """
        self._replicas: dict[int, _Replica] = {}
        self._changed = changed

    def remembered(self) -> tuple[RememberedReplica, ...]:
        """Return what the next process of this replica is to know, by replica."""
        return tuple(
            RememberedReplica(number, replica.boot_nonce, tuple(replica.marks.values()))
            for number, replica in sorted(self._replicas.items())
            if replica.marks
        )

    def restore(self, remembered: Iterable[RememberedReplica]) -> None:
        """Take over what an earlier process remembered, before anything is heard."""
        assert not self._replicas, "nothing is heard yet"
        for each in remembered:
            marks = {mark.disk_id: mark for mark in each.marks}
            self._replicas[each.replica_id] = _Replica(each.boot_nonce, marks=marks)

    def keep(self, replicas: Collection[int]) -> None:
        """Forget all other replicas, whose ids are never given again."""
        gone = self._replicas.keys() - set(replicas)
        for replica in gone:
            del self._replicas[replica]
        if gone:
            self._changed(False)

    def _of(self, replica_id: int) -> _Replica:
        """Return what is known of a replica, and remember it from now on if there is room."""
        if replica_id in self._replicas or len(self._replicas) < REPLICAS_REMEMBERED_MAX:
            return self._replicas.setdefault(replica_id, _Replica())
        return _Replica()

    def judge(self, hello: Hello) -> RefusedHello | None:
        """Return why a replica must not take part with its directory; else remember it."""
        replica = self._of(hello.replica_id)
        if hello.boot_nonce != replica.boot_nonce:
            detail = _forgotten(replica, hello.disk)
            if detail is not None:
                return RefusedHello(HelloRefusal.OLDER_DIRECTORY, _advice(hello.replica_id, detail))
            # What a process said before its end may arrive after the hello of the next one.
            if hello.boot_nonce not in replica.earlier:
                replica.earlier.append(replica.boot_nonce)
                replica.boot_nonce = hello.boot_nonce
                self._changed(False)
        self.heard(hello.replica_id, hello.disk)
        return None

    def heard(self, replica_id: int, mark: DiskMark) -> None:
        """Take what a running replica tells; an earlier process' words are left out."""
        replica = self._of(replica_id)
        if not mark.disk_id or mark.boot_nonce != replica.boot_nonce:
            return
        known = replica.marks.get(mark.disk_id)
        later = _later(known or mark, mark)
        if later != known:
            replica.remember(later)
            self._changed(known is None or _promises(later) != _promises(known))


def _later(known: DiskMark, mark: DiskMark) -> DiskMark:
    """Return what is known after both; words of one process may arrive in any order."""
    damaged_start, journal_sequence = max(_end(known), _end(mark))
    return DiskMark(
        mark.disk_id,
        max(known.view, mark.view),
        max(known.log_view, mark.log_view),
        damaged_start,
        journal_sequence,
    )


def _promises(mark: DiskMark) -> tuple[int, int, int]:
    return mark.view, mark.log_view, mark.damaged_start


def _end(mark: DiskMark) -> tuple[int, int]:
    return mark.damaged_start, mark.journal_sequence


def _forgotten(replica: _Replica, mark: DiskMark) -> str | None:
    """Return what the directory of a start has forgotten, None for nothing."""
    known = replica.marks.get(mark.disk_id)
    if known is None:
        return None
    if mark.disk_id != next(reversed(replica.marks)):
        return "the replica has voted with another one since"
    told = (
        ("view", mark.view, known.view),
        ("the log of view", mark.log_view, known.log_view),
        ("damage found at start", mark.damaged_start, known.damaged_start),
    )
    for what, now, before in told:
        if now < before:
            return f"it knows {what} {now}, and told of {before} before"
    # A start that finds the end damaged notes this. The core knows it, too, and votes accordingly.
    if (mark.damaged_start, mark.last_sequence) < _end(known):
        return (
            f"its journal reaches record {mark.last_sequence}, and had reached "
            f"{known.journal_sequence} before"
        )
    return None


def _advice(replica_id: int, detail: str) -> str:
    return (
        f"the data directory of replica {replica_id} is an older copy: {detail}; keep a copy of it,"
        f" and bring back the newest one or start replica {replica_id} with an empty directory"
    )
