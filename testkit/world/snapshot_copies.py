"""The copies of snapshot files on a disk of a world, and damage to them.

The product keeps each file three times. One copy may be lost at any time, on any replica, as long
as another one is intact.
"""

from __future__ import annotations

from random import Random
from typing import Final

from coordinator.replica.data_directory import SNAPSHOTS_DIRECTORY
from coordinator.snapshot.layout import FOLDERS
from testkit.world.disk import WorldDisk
from testkit.world.replica import DIRECTORY
from viewstamp.limits import SNAPSHOT_COPIES

ROOT: Final = f"{DIRECTORY}/{SNAPSHOTS_DIRECTORY}/"


def durable_files(disk: WorldDisk) -> list[str]:
    """Return the paths of all copies of layers and manifests that are durable, sorted."""
    return [path for path in disk.durable_paths() if path.startswith(ROOT) and name_of(path)]


def name_of(path: str) -> str:
    """Return the name of a layer or manifest within its copy, empty for other files."""
    folder, name = path.split("/")[-2:]
    return f"{folder}/{name}" if folder in FOLDERS and not name.endswith(".tmp") else ""


def directory_of(path: str) -> str:
    """Return the copy directory of a layer or manifest."""
    return path.removesuffix(f"/{name_of(path)}")


def copies_of(disk: WorldDisk, name: str) -> list[str]:
    """Return the paths of the durable copies of a file."""
    return [path for path in durable_files(disk) if name_of(path) == name]


def whole_names(disk: WorldDisk) -> list[str]:
    """Return the names of the files that all directories have, equal and readable, sorted."""
    names = sorted({name_of(path) for path in durable_files(disk)})
    return [name for name in names if _is_whole(disk, copies_of(disk, name))]


def _is_whole(disk: WorldDisk, paths: list[str]) -> bool:
    contents = {disk.content(path) for path in paths}
    is_readable = all(disk.is_readable(path) for path in paths)
    return len(paths) == SNAPSHOT_COPIES and len(contents) == 1 and is_readable


def spoil_one(disk: WorldDisk, name: str, random: Random) -> str:
    """Spoil one copy of a file of which all are whole; return what was done to which."""
    path = random.choice(copies_of(disk, name))
    how = random.choice(("rotten", "gone", "short", "unreadable"))
    size = len(disk.content(path))
    if how == "rotten":
        disk.rot(path, 0, size, random)
    elif how == "gone":
        disk.remove(path)
    elif how == "short":
        disk.replace(path, disk.content(path)[: random.randrange(size)])
    else:
        disk.make_unreadable(path, random.randrange(size), 1)
    return f"{path} is {how}"


def spoil_all(disk: WorldDisk, name: str, random: Random) -> None:
    """Spoil every copy of a file."""
    for path in copies_of(disk, name):
        disk.rot(path, 0, len(disk.content(path)), random)


def may_lose(disk: WorldDisk, directory: str) -> bool:
    """Whether each file that this copy directory has, but for new ones, has an intact copy left."""
    whole = {name_of(path) for path in durable_files(disk)} <= set(whole_names(disk))
    return whole and any(path.startswith(f"{directory}/") for path in durable_files(disk))
