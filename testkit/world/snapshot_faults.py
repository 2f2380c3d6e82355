"""Faults of the files of snapshots: of one copy on any replica, or of all on a victim."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from testkit.world.branches import DAMAGE_MET
from testkit.world.ground import Ground
from testkit.world.replica import WorldReplica
from testkit.world.snapshot_copies import (
    copies_of,
    directory_of,
    durable_files,
    may_lose,
    name_of,
    spoil_one,
    whole_names,
)

# How soon a replica is started again that is to read a damaged file.
_READ_MS: Final = (0, 300)


class SnapshotFaults:
    """Each fault returns whether it happened."""

    def __init__(self, ground: Ground) -> None:
        self._ground = ground
        self.strikes: Mapping[str, Callable[[], bool]] = {
            "rot_snapshot": self._rot_snapshot,
            "bad_copy": self._bad_copy,
            "lose_copies": self._lose_copies,
        }

    def end(self) -> None:
        """Leave what is spoilt to the product."""

    def _rot_snapshot(self) -> bool:
        """Damage a file of a victim's snapshots: one copy of it, or all."""
        victim, random = self._ground.victim(), self._ground.random
        if victim is None:
            return False
        disk = victim.machine.disk
        names = sorted({name_of(path) for path in durable_files(disk)})
        if not names:
            return False
        name = random.choice(names)
        copies = copies_of(disk, name)
        if random.random() < 0.5:
            copies = [random.choice(copies)]
        for path in copies:
            disk.rot(path, 0, len(disk.content(path)), random)
        self._ground.note(victim, f"has damage: {len(copies)} copies of {name}")
        self._have_it_read(victim)
        return True

    def _bad_copy(self) -> bool:
        """Spoil one copy of a file of any replica's snapshots, if the other two are whole."""
        replica, random = self._ground.replica(), self._ground.random
        names = whole_names(replica.machine.disk)
        if not names:
            return False
        told = spoil_one(replica.machine.disk, random.choice(names), random)
        self._ground.note(replica, f"has damage: {told}")
        self._have_it_read(replica)
        return True

    def _lose_copies(self) -> bool:
        """Have a replica come back with one of its three copy directories on an empty disk."""
        replica, random = self._ground.replica(), self._ground.random
        disk = replica.machine.disk
        directories = sorted({directory_of(path) for path in durable_files(disk)})
        directory = random.choice(directories) if directories else ""
        if not directory or not may_lose(disk, directory):
            return False
        self._ground.note(replica, f"has an empty disk at {directory}")
        replica.kill_all()
        disk.empty_directory(directory)
        return True

    def _have_it_read(self, replica: WorldReplica) -> None:
        """Half of the time, let all processes die soon: nobody reads a snapshot before a start."""
        if self._ground.random.random() < 0.5:
            self._ground.branches.counts[DAMAGE_MET] += 1
            self._ground.later(_READ_MS, replica.kill_all)
