"""Who comes first where the replicas of a cluster share the processors of one machine.

Linux can give the processes of a session one common share of the processors (an autogroup, see
sched(7)), and each of ours has a session of its own. So a nice value of the process counts only
among its own threads; that of its autogroup is what counts among processes, and anybody may take
it back. Where there are no autogroups, or where they are switched off, all have equal shares.
"""

from __future__ import annotations

import asyncio
import errno
import logging
from collections.abc import Iterable
from pathlib import Path
from typing import Final

EQUAL_NICE: Final = 0
YIELDING_NICE: Final = 10
# The kernel takes a value in 100 ms from all processes together, but for those it trusts. Whoever
# wants to come first again tries sooner than those who want to come last.
RAISE_RETRY_S: Final = 0.1
LOWER_RETRY_S: Final = 0.5
_PROCESSES: Final = Path("/proc")
# What writing says for a process that has ended meanwhile.
_ENDED: Final = frozenset({errno.ENOENT, errno.ESRCH})

logger = logging.getLogger(__name__)


class Precedence:
    """The shares of one replica's services."""

    def __init__(self, processes: Path = _PROCESSES) -> None:
        self._processes = processes
        self._pids: frozenset[int] = frozenset()
        self._yields = False
        self._lowered: set[int] = set()  # those of them that come last now
        self._task: asyncio.Task[None] | None = None
        self._is_possible = (processes / "self" / "autogroup").exists()
        self._has_warned = False

    def settle(self, pids: Iterable[int], *, yields: bool) -> None:
        """Give the processes the share that they have while their replica yields, or does not."""
        self._pids, self._yields = frozenset(pids), yields
        # Who is not among them has ended; another process may get its number.
        self._lowered &= self._pids
        # Whatever is waited for: another change is tried at once.
        self._cancel()
        if not self._give():
            self._task = asyncio.create_task(self._give_later())

    def stop(self) -> None:
        """Give no more shares: the processes are about to end."""
        self._pids, self._lowered = frozenset(), set()
        self._cancel()

    def _cancel(self) -> None:
        if self._task is not None:
            self._task.cancel()
            self._task = None

    async def _give_later(self) -> None:
        is_done = False
        while not is_done:
            await asyncio.sleep(LOWER_RETRY_S if self._yields else RAISE_RETRY_S)
            is_done = self._give()
        self._task = None

    def _give(self) -> bool:
        """Give the shares that are due; return whether nothing is left to be tried again."""
        nice = YIELDING_NICE if self._yields else EQUAL_NICE
        for pid in sorted(self._pids):
            is_lowered = pid in self._lowered
            if is_lowered is self._yields or not (is_lowered or self._is_possible):
                continue
            try:
                (self._processes / str(pid) / "autogroup").write_text(f"{nice}\n")
            except OSError as error:
                if not self._may_be_left(error, is_lowered=is_lowered):
                    return False
            else:
                self._lowered ^= {pid}
        return True

    def _may_be_left(self, error: OSError, *, is_lowered: bool) -> bool:
        """Whether a share that was refused need not be asked for again."""
        if error.errno in _ENDED:
            return True
        if error.errno == errno.EAGAIN:
            return False
        if not self._has_warned:
            self._has_warned = True
            logger.warning("shares of the processors cannot be changed: %s", error)
        if is_lowered:  # whatever the reason is: who was made to come last must not be left there
            return False
        self._is_possible = False
        return True
