"""Storage in memory that models what disks do to data that was not synced.

Every file has what its readers see, what the disk has, and the writes in between. `crash` decides
sector by sector which of those writes reached the disk; directory entries fare alike. A failing
sync behaves as Linux does: the pages stay visible, count as clean, and no later sync writes them.
"""

from __future__ import annotations

import errno
import os
import random
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum
from typing import Self

from coordinator.storage import DirectoryInUse
from viewstamp.format.record import SECTOR_BYTES

TEAR_BYTES = 512
CAPACITY_BYTES = 1 << 40
DROPS_KEPT_MAX = 4096


class Loss(Enum):
    """The effect of a crash on writes and directory entries that were not synced."""

    DROP = "drop"
    KEEP = "keep"
    PARTLY = "partly"


class SimulatedCrash(BaseException):
    """The machine stops before the I/O step at hand. No handler of ordinary errors sees it."""


@dataclass(slots=True)
class Inode:
    """One file's bytes."""

    visible: bytearray = field(default_factory=bytearray)
    durable: bytearray = field(default_factory=bytearray)
    pending: list[tuple[int, bytes]] = field(default_factory=list)

    def apply(self, offset: int, data: bytes) -> None:
        """Let one write, or a sector of one, reach the disk."""
        _put(self.durable, offset, data)

    def sync(self) -> None:
        """Let every write reach the disk."""
        for offset, data in self.pending:
            self.apply(offset, data)
        self.pending.clear()

    def copy(self) -> Inode:
        """An equal one that shares nothing that changes."""
        return Inode(bytearray(self.visible), bytearray(self.durable), list(self.pending))


def _put(content: bytearray, offset: int, data: bytes) -> None:
    if len(content) < offset:
        content.extend(bytes(offset - len(content)))
    content[offset : offset + len(data)] = data


@dataclass(frozen=True, slots=True)
class EntryChange:
    """A directory entry made or removed, not yet durable."""

    directory: str
    path: str
    inode: Inode | None


class MemoryStorage:
    """A `Storage`. `steps` counts I/O steps; `crash_at` names the one that is not reached."""

    def __init__(self, capacity_bytes: int = CAPACITY_BYTES) -> None:
        self.capacity_bytes = capacity_bytes
        self.capacities_bytes: dict[str, int] = {}
        """What fits below certain directories; `capacity_bytes` is what fits into all together."""
        self.before_step: Callable[[str], None] | None = None
        """Called with the name of each I/O step before it is taken; may raise what it refuses."""
        self.steps = 0
        self.crash_at: int | None = None
        self.failing_syncs: set[int] = set()
        """Which syncs fail with EIO, counted from 0 over the life of this object."""
        self.syncs = 0
        self.log: list[str] = []
        """Every I/O step by name, for assertions about order."""
        self.drops: deque[tuple[str, int, int]] = deque(maxlen=DROPS_KEPT_MAX)
        """The last extents that were to leave the cache: path, offset, size."""
        self._visible: dict[str, Inode] = {}
        self._durable: dict[str, Inode] = {}
        self._changes: list[EntryChange] = []
        self._directories: set[str] = {""}
        self._locked: set[str] = set()

    # --- Faults ---

    def crash(self, loss: Loss, seed: int = 0) -> None:
        """Lose power. Only what survives is there afterwards; locks are gone."""
        random_source = random.Random(seed)
        for inode in {
            id(i): i for i in (*self._visible.values(), *self._durable.values())
        }.values():
            for offset, data in inode.pending:
                _lose(inode, offset, data, loss, random_source)
            inode.pending.clear()
            inode.visible = bytearray(inode.durable)
        for change in self._changes:
            if loss is Loss.KEEP or (loss is Loss.PARTLY and random_source.random() < 0.5):
                _enter(self._durable, change)
        self._changes.clear()
        self._visible = dict(self._durable)
        self.restart_process()
        self.crash_at = None

    def restart_process(self) -> None:
        """End the process alone: the page cache keeps what it has, synced or not."""
        self._locked.clear()

    def copy(self) -> Self:
        """Return a copy of the disk as it is now, without locks, hooks and counts."""
        inodes: dict[int, Inode] = {}

        def copied(inode: Inode) -> Inode:
            return inodes.setdefault(id(inode), inode.copy())

        cls = type(self)
        other = cls()
        other.capacity_bytes = self.capacity_bytes
        other.capacities_bytes = dict(self.capacities_bytes)
        other._visible = {path: copied(inode) for path, inode in self._visible.items()}
        other._durable = {path: copied(inode) for path, inode in self._durable.items()}
        other._changes = [
            EntryChange(c.directory, c.path, None if c.inode is None else copied(c.inode))
            for c in self._changes
        ]
        other._directories = set(self._directories)
        return other

    def flip(self, path: str, offset: int, mask: int = 0xFF) -> None:
        """Rot one byte, on the disk and for readers."""
        inode = self._visible[path]
        inode.visible[offset] ^= mask
        inode.durable[offset] ^= mask

    def rot(self, path: str, offset: int, size: int, source: random.Random) -> None:
        """Damage some bytes of an extent: one bit, one byte, or a whole sector."""
        how = source.randrange(3)
        at = offset + source.randrange(size)
        if how == 0:
            self.flip(path, at, 1 << source.randrange(8))
        elif how == 1:
            self.flip(path, at, source.randint(1, 255))
        else:
            start = offset + source.randrange(-(-size // SECTOR_BYTES)) * SECTOR_BYTES
            for byte in range(start, min(start + SECTOR_BYTES, offset + size)):
                self.flip(path, byte, source.randint(1, 255))

    def content(self, path: str) -> bytes:
        """What readers of a file see."""
        return bytes(self._visible[path].visible)

    def replace(self, path: str, content: bytes) -> None:
        """Replace a file durably, without telling anybody who has it open."""
        inode = Inode(bytearray(content), bytearray(content))
        self._visible[path] = self._durable[path] = inode

    def remove(self, path: str) -> None:
        """Remove a file durably, without telling anybody who has it open."""
        del self._visible[path], self._durable[path]

    def empty_directory(self, path: str) -> None:
        """Replace the directory by an empty disk. Its files are gone durably."""
        for gone in [each for each in self.paths() if each.startswith(f"{path}/")]:
            self.remove(gone)
        self._directories = {e for e in self._directories if not e.startswith(f"{path}/")}

    def paths(self) -> list[str]:
        """Every file, sorted."""
        return sorted(self._visible)

    def durable_paths(self) -> list[str]:
        """Every file that a loss of power would leave as it is, sorted."""
        durable = self._durable
        return [p for p in self.paths() if p in durable and not durable[p].pending]

    def is_durable(self, path: str, offset: int, size: int) -> bool:
        """Whether a crash would leave these bytes as readers see them."""
        seen = self._visible[path]
        kept = self._durable.get(path)
        end = offset + size
        return kept is seen and kept.durable[offset:end] == seen.visible[offset:end]

    def snapshot(self) -> dict[str, bytes]:
        """Every file's content, to compare before and after."""
        return {path: self.content(path) for path in self.paths()}

    # --- What files call ---

    def step(self, name: str) -> None:
        """Count an I/O step, and crash before it if it is the one."""
        if self.steps == self.crash_at:
            raise SimulatedCrash(name)
        if self.before_step is not None:
            self.before_step(name)
        self.steps += 1
        self.log.append(name)

    def sync_inode(self, path: str, inode: Inode) -> None:
        """Sync one file, or fail as told and forget what was dirty."""
        self.step(f"sync {path}")
        self.syncs += 1
        if self.syncs - 1 in self.failing_syncs:
            inode.pending.clear()
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        inode.sync()

    def check_read(self, path: str, offset: int, size: int) -> None:
        """Raise what a read of these bytes shall raise; here nothing."""

    def grow(self, growth_bytes: int) -> None:
        """Take space, or fail with ENOSPC."""
        if growth_bytes > self.free_bytes(""):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def grow_file(self, path: str, growth_bytes: int) -> None:
        """Take space on the file system of a file, or fail with ENOSPC."""
        if not growth_bytes:
            return
        if self._root_of(path) is None:
            self.grow(growth_bytes)
        elif growth_bytes > self.free_bytes(path):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def _root_of(self, path: str) -> str | None:
        if not self.capacities_bytes:
            return None
        roots = (root for root in self.capacities_bytes if f"{path}/".startswith(f"{root}/"))
        return max(roots, default=None, key=len)

    # --- Storage ---

    def create(self, path: str) -> MemoryFile:
        """A new, empty file."""
        if path in self._visible:
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), path)
        self.step(f"create {path}")
        self._change(path, Inode())
        return MemoryFile(self, path, self._visible[path])

    def open(self, path: str) -> MemoryFile:
        """An existing file."""
        if path not in self._visible:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)
        return MemoryFile(self, path, self._visible[path])

    def exists(self, path: str) -> bool:
        """Whether there is a file or directory."""
        return path in self._visible or path in self._directories

    def names(self, directory: str) -> list[str]:
        """The names in a directory, sorted."""
        prefix = f"{directory}/"
        paths = (*self._visible, *self._directories)
        rests = [path.removeprefix(prefix) for path in paths if path.startswith(prefix)]
        return sorted(rest for rest in rests if "/" not in rest)

    def make_directory(self, path: str) -> None:
        """Make a directory, durably."""
        self.step(f"make_directory {path}")
        self._directories.add(path)

    def rename(self, source: str, target: str) -> None:
        """Move a file."""
        self.step(f"rename {source} {target}")
        inode = self._visible[source]
        self._change(source, None)
        self._change(target, inode)

    def unlink(self, path: str) -> None:
        """Remove a file."""
        if path not in self._visible:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)
        self.step(f"unlink {path}")
        self._change(path, None)

    def sync_directory(self, path: str) -> None:
        """Make the entries of one directory durable."""
        self.step(f"sync_directory {path}")
        for change in self._changes:
            if change.directory == path:
                _enter(self._durable, change)
        self._changes = [change for change in self._changes if change.directory != path]

    def free_bytes(self, directory: str) -> int:
        """Return the free bytes of the directory's file system."""
        root = self._root_of(directory)
        capacity_bytes = self.capacity_bytes if root is None else self.capacities_bytes[root]
        # Lists, since other threads may make files meanwhile.
        inodes = list(self._visible.values())
        if root is not None:
            within = f"{root}/"
            inodes = [i for path, i in list(self._visible.items()) if path.startswith(within)]
        return capacity_bytes - sum([len(inode.visible) for inode in inodes])

    def lock(self, directory: str) -> MemoryLock:
        """Hold a directory."""
        if directory in self._locked:
            raise DirectoryInUse(directory, os.getpid())
        self._locked.add(directory)
        return MemoryLock(self._locked, directory)

    def _change(self, path: str, inode: Inode | None) -> None:
        change = EntryChange(path.rpartition("/")[0], path, inode)
        _enter(self._visible, change)
        self._changes.append(change)


def _enter(entries: dict[str, Inode], change: EntryChange) -> None:
    if change.inode is None:
        entries.pop(change.path, None)
    else:
        entries[change.path] = change.inode


def _lose(inode: Inode, offset: int, data: bytes, loss: Loss, source: random.Random) -> None:
    """Let all, none or some of the sectors of one write reach the disk."""
    for start in range(0, len(data), TEAR_BYTES):
        if loss is Loss.KEEP or (loss is Loss.PARTLY and source.random() < 0.5):
            inode.apply(offset + start, data[start : start + TEAR_BYTES])


class MemoryFile:
    """A `StorageFile`."""

    def __init__(self, storage: MemoryStorage, path: str, inode: Inode) -> None:
        self._storage = storage
        self._path = path
        self._inode = inode
        self._closed = False

    @property
    def path(self) -> str:
        """Where it was when it was opened."""
        return self._path

    def _usable(self) -> Inode:
        if self._closed:
            raise ValueError(f"{self._path} is closed")
        return self._inode

    def size(self) -> int:
        """Its size in bytes."""
        return len(self._usable().visible)

    def read(self, offset: int, size: int) -> bytes:
        """Up to `size` bytes."""
        self._storage.check_read(self._path, offset, size)
        return bytes(self._usable().visible[offset : offset + size])

    def write(self, offset: int, data: bytes) -> None:
        """Put all of `data`."""
        inode = self._usable()
        self._storage.step(f"write {self._path}")
        self._storage.grow_file(self._path, max(0, offset + len(data) - len(inode.visible)))
        _put(inode.visible, offset, data)
        inode.pending.append((offset, bytes(data)))

    def preallocate(self, size: int) -> None:
        """Fill with zeros up to `size`."""
        here = self.size()
        if here < size:
            self.write(here, bytes(size - here))

    def reserve(self, size: int) -> None:
        """Take space up to `size`: like zeros that were written."""
        self.preallocate(size)

    def sync(self) -> None:
        """Make every write durable."""
        self._storage.sync_inode(self._path, self._usable())

    def drop_cached(self, offset: int, size: int) -> None:
        """Forget nothing: what readers see has no copy in front of it."""
        self._storage.drops.append((self._path, offset, size))

    def close(self) -> None:
        """Give it back."""
        self._closed = True


class MemoryLock:
    """A `StorageLock`."""

    def __init__(self, locked: set[str], directory: str) -> None:
        self._locked = locked
        self._directory = directory

    def descriptors(self) -> tuple[int, ...]:
        """None: no other process sees these files."""
        return ()

    def release(self) -> None:
        """Let others in."""
        self._locked.discard(self._directory)
