"""Continuous analysis: reads traces as they grow, and repeats the analysis.

    Structured Streaming -> spans, quarantine          (every few seconds, exactly once)
    spans, snapshots -> all other tables, report       (at an interval, if there is something new)

Both change tables, so they take turns. A signal may end the process at any moment. It breaks off
the work under way, as a kill would, and the next run with the same output repeats that work.
"""

from __future__ import annotations

import contextlib
import signal
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Final

from analytics import job, sizing, tables
from analytics.otlp.quality import QualityError
from analytics.schema import SPANS
from analytics.session import AnalyticsError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

    from analytics.otlp.ingest import Ingested

SIGNALS: Final = (signal.SIGINT, signal.SIGTERM)
# How soon the process notices that reading has failed.
LOOK_S: Final = 0.5


class FollowError(AnalyticsError):
    """Following cannot begin, or reading has failed. The message says why, and what to do."""


@dataclass(frozen=True, slots=True)
class FollowPace:
    """How often new lines are looked for, and the time between two analyses, in seconds."""

    every_s: int
    refresh_s: int


def check(request: job.AnalysisRequest) -> None:
    """Raise FollowError if there is nothing to follow."""
    if not request.traces:
        raise FollowError("only traces can be followed: name their directory with --traces")
    for path in request.traces:
        if not path.exists():
            raise FollowError(f"{path} does not exist: name the directory that traces go to")


@contextlib.contextmanager
def stopped_by_signals() -> Iterator[threading.Event]:
    """Yield an event that SIGINT and SIGTERM set, in place of what they did before."""
    stopping = threading.Event()

    def stop(_: int, __: FrameType | None) -> None:
        stopping.set()

    before = {number: signal.signal(number, stop) for number in SIGNALS}
    try:
        yield stopping
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def follow(
    spark: SparkSession,
    request: job.AnalysisRequest,
    pace: FollowPace,
    progress: job.Progress,
    told: Callable[[job.AnalysisOutcome], None],
    stopping: threading.Event,
) -> None:
    """Keep tables and report up to date until `stopping` is set; call `told` for each analysis.

    Raises FollowError if reading fails. If the data is too bad, the process reports it and tries
    again later.
    """
    from analytics.otlp import source, stream

    # A batch may reach this size, however much input there is at the start.
    size_bytes = sizing.input_bytes(request.traces, request.snapshots)
    sizing.fit(spark, max(size_bytes, source.BATCH_BYTES_DEFAULT))
    turns = _Turns(progress, stopping)
    with tables.claim(request.output):
        query = stream.start(
            spark,
            request.traces,
            request.output,
            every_s=pace.every_s,
            late_before_us=request.since_us,
            guard=turns,
            progress=turns.batch,
        )
        with _ended(spark, query, stopping):
            progress(f"following {', '.join(map(str, request.traces))}", None)
            with _broken_off(stopping):
                _refresh_forever(spark, request, pace, query, turns, told, stopping)
    progress("stopped: the same command goes on from here", None)


class _Turns:
    """Lets one thread at a time change tables, and notes whether they have something new.

    Entering the context takes a turn. After `stopping` is set there are no more turns.
    """

    def __init__(self, progress: job.Progress, stopping: threading.Event) -> None:
        self.progress = progress
        self.is_new = False
        self._stopping = stopping
        self._lock = threading.Lock()

    def __enter__(self) -> None:
        self._lock.acquire()
        if self._stopping.is_set():
            self._lock.release()
            raise FollowError("stopped before it was this batch's turn")

    def __exit__(self, *_: object) -> None:
        self._lock.release()

    def batch(self, step: str, seconds: float | None) -> None:
        """Note that a batch was read. The batch calls this in its turn."""
        self.is_new = self.is_new or seconds is not None
        self.progress(step, seconds)


def _refresh_forever(
    spark: SparkSession,
    request: job.AnalysisRequest,
    pace: FollowPace,
    query: StreamingQuery,
    turns: _Turns,
    told: Callable[[job.AnalysisOutcome], None],
    stopping: threading.Event,
) -> None:
    """Analyse when it is time and there is something new, until stopped."""
    due = time.monotonic()
    # An earlier run may have read data without analysing it, so its table counts as new.
    turns.is_new = tables.exists(SPANS, request.output)
    generations: frozenset[Path] = frozenset()
    while not stopping.wait(LOOK_S):
        _check_reading(query)
        present = _generations(request.snapshots)
        if time.monotonic() < due or not tables.exists(SPANS, request.output):
            continue
        if turns.is_new or present != generations:
            generations, turns.is_new = present, False
            _refresh(spark, request, turns, told, stopping)
            due = time.monotonic() + pace.refresh_s


@contextlib.contextmanager
def _broken_off(stopping: threading.Event) -> Iterator[None]:
    """Raise errors, unless `stopping` is set: Spark ends then, and every call to it fails.

    A signal to a whole process group ends Java at once, so that even stopping Spark fails.
    """
    try:
        yield
    except Exception:
        if not stopping.is_set():
            raise


def _refresh(
    spark: SparkSession,
    request: job.AnalysisRequest,
    turns: _Turns,
    told: Callable[[job.AnalysisOutcome], None],
    stopping: threading.Event,
) -> None:
    """Analyse once. Report data that is too bad; the next new data starts another analysis."""
    try:
        with _broken_off(stopping), turns:
            told(job.analyse(spark, request, turns.progress, _measure))
    except QualityError as error:
        turns.progress(f"not analysed: {error}", None)


def _measure(spark: SparkSession, request: job.AnalysisRequest) -> Ingested:
    """Measure the quality of the spans that the stream has put into the table."""
    from analytics.otlp import stream

    return stream.conclude(spark, request.output)


def _generations(snapshots: Path | None) -> frozenset[Path]:
    """Return the manifests that exist. If they change, the snapshots have changed."""
    return frozenset() if snapshots is None else frozenset(snapshots.rglob("manifests/*"))


def _check_reading(query: StreamingQuery) -> None:
    """Raise FollowError if the stream has ended. Without an error it never ends."""
    if not query.isActive:
        raise FollowError(
            f"reading traces has failed, and goes on if started again: {query.exception()}"
        )


@contextlib.contextmanager
def _ended(spark: SparkSession, query: StreamingQuery, stopping: threading.Event) -> Iterator[None]:
    """Break off the query and all jobs once `stopping` is set, or the context is left."""

    def end() -> None:
        stopping.wait()
        with _broken_off(stopping):
            spark.sparkContext.cancelAllJobs()
            query.stop()

    thread = threading.Thread(target=end, name="stop")
    thread.start()
    try:
        yield
    finally:
        stopping.set()
        thread.join()
