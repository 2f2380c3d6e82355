"""A coordinator with a planted leak.

`python -m testkit.soak.leaking_coordinator BYTES_PER_S FLAGS...`

It is the shipped program, and a thread that keeps so many more bytes each second.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable
from typing import Final

from coordinator.app.main import main
from testkit.other_coordinators import run_instead
from viewstamp.cluster import Program

LOOKS_PER_SECOND: Final = 10


def leaking(bytes_per_second: int) -> Callable[[int, Program], Program]:
    """Return what starts this program in the place of a coordinator; other programs stay."""

    def adapt(_: int, program: Program) -> Program:
        return run_instead(program, "testkit.soak.leaking_coordinator", str(bytes_per_second))

    return adapt


def _leak(bytes_per_second: int) -> None:
    kept = []
    while True:
        # Bytes that are not zero: the kernel gives room only to what is written to.
        kept.append(b"x" * (bytes_per_second // LOOKS_PER_SECOND))
        time.sleep(1 / LOOKS_PER_SECOND)


if __name__ == "__main__":
    threading.Thread(target=_leak, args=(int(sys.argv[1]),), daemon=True).start()
    sys.exit(main(sys.argv[2:]))
