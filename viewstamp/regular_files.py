"""Opens files that somebody named, without a wait for what may never come."""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path
from typing import BinaryIO


def open_regular(path: Path, *, follows: bool = True) -> BinaryIO:
    """Open a regular file to read it; without `follows` a symbolic link is refused.

    Raises OSError, for a pipe or a device too: nobody may write to a pipe, and a device may not
    end.
    """
    # Without O_NONBLOCK, to open a pipe waits until somebody writes to it.
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | (0 if follows else os.O_NOFOLLOW))
    try:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise OSError(errno.EINVAL, "it is no regular file", str(path))
        return os.fdopen(descriptor, "rb")
    except BaseException:
        os.close(descriptor)
        raise
