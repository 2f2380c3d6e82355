"""A coordinator that can be hurt: `python -m testkit.torture.hurt_coordinator FLAGS...`.

It is the shipped program, on the real disk. While the file `FULL` exists in its data directory, no
file may grow, as on a full disk. The file `JUMP` has nanoseconds that are added to the wall clock.
"""

from __future__ import annotations

import errno
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

from coordinator.app.main import main
from coordinator.storage import DescriptorFile, FileStorage
from testkit.other_coordinators import run_instead
from viewstamp.cluster import Program

FULL: Final = "the-disk-is-full"
JUMP: Final = "the-clock-has-jumped"
_DIRECTORY_FLAG: Final = "--data-directory"


def hurt(_: int, program: Program) -> Program:
    """Return this program in the place of a coordinator; other programs stay as they are."""
    return run_instead(program, "testkit.torture.hurt_coordinator")


def let_the_disk_fill_up(marker: Path) -> None:
    """Refuse whatever takes room while the marker exists; what has its room can be rewritten."""
    write, reserve, free_bytes = (
        DescriptorFile.write,
        DescriptorFile.reserve,
        FileStorage.free_bytes,
    )

    def write_if_there_is_room(self: DescriptorFile, offset: int, data: bytes) -> None:
        if marker.exists() and offset + len(data) > self.size():
            raise _no_space(self.path)
        write(self, offset, data)

    def reserve_if_there_is_room(self: DescriptorFile, size: int) -> None:
        if marker.exists() and size > self.size():
            raise _no_space(self.path)
        reserve(self, size)

    def no_bytes_if_full(self: FileStorage, directory: str) -> int:
        return 0 if marker.exists() else free_bytes(self, directory)

    DescriptorFile.write = write_if_there_is_room  # type: ignore[method-assign]
    DescriptorFile.reserve = reserve_if_there_is_room  # type: ignore[method-assign]
    FileStorage.free_bytes = no_bytes_if_full  # type: ignore[method-assign]


def let_the_clock_jump(jump: Path) -> None:
    """Add to the wall clock what the file says, if it is there."""
    setattr(time, "time_ns", _jumping(time.time_ns, jump))  # noqa: B010


def _jumping(clock: Callable[[], int], jump: Path) -> Callable[[], int]:
    def read() -> int:
        try:
            return clock() + int(jump.read_bytes())
        except FileNotFoundError:
            return clock()

    return read


def _no_space(path: str) -> OSError:
    return OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), path)


if __name__ == "__main__":
    directory = Path(sys.argv[sys.argv.index(_DIRECTORY_FLAG) + 1])
    let_the_disk_fill_up(directory / FULL)
    let_the_clock_jump(directory / JUMP)
    sys.exit(main(sys.argv[1:]))
