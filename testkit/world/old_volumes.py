"""What replicas of a world know of each other's volumes, read as the product would read it."""

from __future__ import annotations

from contextlib import closing
from typing import Final

from coordinator.app.disk_memory import KNOWN_DISKS_FILE
from coordinator.app.main import directory_options
from coordinator.app.members import disk_mark
from coordinator.journal.errors import JournalError
from coordinator.peers.hello import NO_DISK, WIRE_VERSION, DiskMark, Hello
from coordinator.peers.known_disks import KnownDisks
from coordinator.peers.known_disks_codec import MemoryOwner, decode_memory
from coordinator.replica.data_directory import replica_opening
from coordinator.replica.slot_file import SlotFile
from testkit.memory_storage import Loss, MemoryStorage
from testkit.world.replica import CLUSTER_ID, DIRECTORY, WorldReplica
from viewstamp.format import FormatError
from viewstamp.limits import BOOT_NONCE_BYTES

# No start has this one.
_NEXT_START: Final = bytes(BOOT_NONCE_BYTES)


def mark_of(replica: WorldReplica, volume: MemoryStorage) -> DiskMark:
    """Return what a start of the replica on this volume would say of it; nothing if it would end.

    The volume is left as it is.
    """
    with closing(replica_opening(directory_options(replica.config), volume.copy())) as opening:
        try:
            next(opening)
        except StopIteration as opened:
            with closing(opened.value) as files:
                return disk_mark(files, _NEXT_START)
        except JournalError:
            pass  # damaged by another fault
    return NO_DISK


def remembers_more(replica: WorldReplica, of_replica: int, mark: DiskMark) -> bool:
    """Return whether a start of one replica, after a loss of power, would refuse this mark of
    another one."""
    disk = replica.machine.disk.copy()
    disk.crash(Loss.DROP)
    hello = Hello(b"", WIRE_VERSION, of_replica, 0, b"", _NEXT_START, replica.number, disk=mark)
    return _known_disks(replica, disk).judge(hello) is not None


def _known_disks(replica: WorldReplica, disk: MemoryStorage) -> KnownDisks:
    known_disks = KnownDisks()
    try:
        content = SlotFile(disk, f"{DIRECTORY}/{KNOWN_DISKS_FILE}").read()
    except FormatError:
        return known_disks
    if content is not None:
        known_disks.restore(decode_memory(MemoryOwner(CLUSTER_ID, replica.number), content))
    return known_disks
