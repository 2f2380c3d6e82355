"""Become another program that the kernel kills when the supervisor dies.

Run as `python child.py <supervisor's pid> <program> <argument>...`. This wrapper replaces a hook
between fork and exec, so the child runs no code of the supervisor, which has many threads. The
kernel keeps the request over exec.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys
from typing import Final

PR_SET_PDEATHSIG: Final = 1  # <linux/prctl.h>
EXIT_ORPHANED: Final = 3


def main(arguments: list[str]) -> None:
    """Replace this process by the program in `arguments`, which dies when its parent dies."""
    supervisor_pid, program = int(arguments[0]), arguments[1:]
    library = ctypes.CDLL(None, use_errno=True)
    # SIGKILL, because a process that hangs would ignore SIGTERM; durable data is on disk.
    if library.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_PDEATHSIG) failed")
    if os.getppid() != supervisor_pid:
        sys.exit(EXIT_ORPHANED)  # the parent died before the request was made
    os.execv(program[0], program)


if __name__ == "__main__":
    main(sys.argv[1:])
