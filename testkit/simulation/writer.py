"""The thread that does a replica's I/O, in simulated time: one job after the other.

A job takes its time first and touches the disk at the end of it. A crash in between lets it come
as far as some I/O step, which is what a crash in the middle of a write leaves behind.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from testkit.memory_storage import SimulatedCrash
from testkit.simulation.disk import DISK_REFUSES, SimulatedDisk


@dataclass(slots=True)
class Job:
    """A piece of work for the disk, and the function that takes its outcome."""

    kind: str
    work: Callable[[], Any]
    then: Callable[[Any], None]


@dataclass(slots=True)
class PrepareGroup(Job):
    """Prepares that arrive while the disk is busy share one sync, as in the real writer."""

    prepares: list[Any]


class SimulatedWriter:
    """The jobs of one process."""

    def __init__(self, start_job: Callable[[Job], None]) -> None:
        """`start_job` is called with each job when its turn comes; it calls `finish` later."""
        self._queue: deque[Job] = deque()
        self._running: Job | None = None
        self._start_job = start_job
        self.writes_done = 0

    @property
    def is_idle(self) -> bool:
        """Whether nothing is under way."""
        return self._running is None

    def append(self, prepares: list[Any], journal: Any, then: Callable[[Any], None]) -> None:
        """Journal prepares, together with those that wait already."""
        last = self._queue[-1] if self._queue else None
        if isinstance(last, PrepareGroup):
            last.prepares.extend(prepares)
            return
        group = list(prepares)

        def work() -> list[Any]:
            journal.append(group)
            return group

        self._put(PrepareGroup("append", work, then, group))

    def do(self, kind: str, work: Callable[[], Any], then: Callable[[Any], None]) -> None:
        """Do anything else on the disk, in turn."""
        self._put(Job(kind, work, then))

    def _put(self, job: Job) -> None:
        self._queue.append(job)
        self._go_on()

    def _go_on(self) -> None:
        if self._running is None and self._queue:
            self._running = self._queue.popleft()
            self._start_job(self._running)

    def finish(self, job: Job) -> None:
        """The job's time is over: do it, tell, and begin the next."""
        assert job is self._running, f"{job.kind} is not what is under way"
        self._running = None
        self.writes_done += 1
        result = job.work()
        job.then(result)
        self._go_on()

    def tear(self, disk: SimulatedDisk, step: int) -> str | None:
        """End the process in the middle of its job, at I/O step `step`."""
        job, self._running = self._running, None
        self._queue.clear()
        if job is None:
            return None
        disk.crash_at = disk.steps + step
        try:
            job.work()
        except SimulatedCrash as step:
            return f"{job.kind} before {step}"
        except DISK_REFUSES as error:
            return f"{job.kind}: {error}"
        finally:
            disk.crash_at = None
        return f"{job.kind} done and not reported"
