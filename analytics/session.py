"""The Spark session for all analyses, with clear errors if it cannot start."""

from __future__ import annotations

import atexit
import contextlib
import logging
import os
import re
import shutil
import socketserver
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from analytics import package

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pyspark.sql import SparkSession

MASTER_DEFAULT: Final = "local[*]"
JAVA_MIN: Final = 17
PACKAGE: Final = "viewstamp-analytics.zip"
JAVA_REMEDY: Final = "install the Debian package `openjdk-17-jre-headless`, or set JAVA_HOME"
SPARK_REMEDY: Final = "install the extra `analytics`: pip install 'viewstamp[analytics]'"

# The bytes that a task reads from a shuffle or from Parquet files: some hundred thousand spans. A
# task can sort these, add them up or hold one side of a join in its part of the heap, whatever the
# total.
TASK_PART: Final = "4m"
TASK_FILES: Final = "8m"
# The settings for every master, with values as Spark spells them.
SETTINGS: Final[dict[str, str]] = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    # Days and minutes are in UTC, wherever the job runs.
    "spark.sql.session.timeZone": "UTC",
    # A producer may write an attribute twice; the later value counts.
    "spark.sql.mapKeyDedupPolicy": "LAST_WIN",
    "spark.sql.execution.arrow.pyspark.enabled": "true",
    # A row of spans can be large; a batch of the default 10,000 rows could be hundreds of MB.
    "spark.sql.execution.arrow.maxRecordsPerBatch": "4096",
    "spark.sql.parquet.compression.codec": "zstd",
    # A task writes spans of few days and services: with an open file for each, it need not sort.
    "spark.sql.maxConcurrentOutputFileWriters": "16",
    # Cached data makes room for work and goes to disk, except for a fifth.
    "spark.memory.storageFraction": "0.2",
    "spark.sql.files.maxPartitionBytes": TASK_FILES,
    # Few bytes on disk are many spans in memory. Judged by the size of files, Spark would send
    # millions of spans to every task and hold them in the driver. The bytes of a shuffle are a
    # better measure.
    "spark.sql.autoBroadcastJoinThreshold": "-1",
    "spark.sql.adaptive.autoBroadcastJoinThreshold": TASK_PART,
    "spark.sql.adaptive.advisoryPartitionSizeInBytes": TASK_PART,
    # If no partition of one side of a join is larger, Spark holds it in memory and sorts neither
    # side.
    "spark.sql.adaptive.maxShuffledHashJoinLocalMapThreshold": TASK_PART,
}
# A local session talks to itself only, so a name that resolves elsewhere does not matter.
LOCAL_SETTINGS: Final[dict[str, str]] = {
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
}
MEMORY: Final = "spark.driver.memory"
# A local session is one process, and Java fills its heap whatever the input, so the heap is only as
# large as the work needs. The first part is for Spark itself (300 MiB reserve, plans, records of
# jobs). A task that sorts, joins or adds up more than its part of the heap uses the disk.
HEAP_BASE_MB: Final = 1024
HEAP_CORE_MB: Final = 256
# Spark refuses to start with less than this.
HEAP_MIN_MB: Final = 512
_LOCAL: Final = re.compile(r"local(?:\[(\*|\d+)(?:,\s*\d+)?\])?")
# Java compiles quickly rather than well, which halves the time of an analysis of a minute.
BRIEF_OPTIONS: Final = "-XX:TieredStopAtLevel=1"


class AnalyticsError(Exception):
    """The analysis cannot continue. One line says what is wrong and what to do."""


def build(
    name: str,
    master: str | None = None,
    settings: Mapping[str, str] | None = None,
    *,
    is_brief: bool = False,
    heap_mb: int | None = None,
) -> SparkSession:
    """Return the Spark session, started if there is none yet.

    `master` is Spark's address (`local[4]`, `spark://host:7077`); without it, the address from
    spark-submit counts, else all cores of this machine are used. `settings` override all others.
    With `is_brief`, a local session starts sooner, at the price of speed in long work. `heap_mb` is
    Java's heap in MiB; without it, a local session has `heap_mb_of` its cores. Raises
    AnalyticsError where Java or pyspark is missing or too old, or the heap too small.
    """
    check_java()
    try:
        from pyspark.sql import SparkSession
    except ImportError as error:
        raise AnalyticsError(f"pyspark cannot be imported ({error}): {SPARK_REMEDY}") from error
    # Workers must run the interpreter that has these packages, not the first `python3` they find.
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    _share_packages()
    submitted = _submitted()
    is_launched = not submitted
    master = master or submitted.get("spark.master") or os.environ.get("MASTER") or MASTER_DEFAULT
    is_local = _LOCAL.fullmatch(master) is not None
    if is_local:
        os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
        if is_brief:
            os.environ.setdefault("SPARK_SUBMIT_OPTS", BRIEF_OPTIONS)
    chosen = settings_of(master, submitted, heap_mb)
    builder = SparkSession.builder.appName(name).master(master)
    for key, value in (chosen | dict(settings or {})).items():
        builder = builder.config(key, value)
    session = builder.getOrCreate()
    session.sparkContext.setLogLevel("ERROR")
    overlook_end_of_java(session.sparkContext._accumulatorServer)
    leave_errors_to_callers()
    if not (is_local and is_launched):
        _ship_packages(session)
    return session


def overlook_end_of_java(server: socketserver.BaseServer) -> None:
    """Let a server that only Java talks to print no traceback after Java has ended.

    If a signal ends Java first, the connection breaks off while the server reads. The caller that
    needed Java reports the reason. All other errors are printed as before.
    """
    print_error = server.handle_error

    def handle_error(request: Any, client_address: Any) -> None:
        if not isinstance(sys.exception(), (EOFError, ConnectionError)):
            print_error(request, client_address)

    setattr(server, "handle_error", handle_error)  # noqa: B010 - mypy takes no new method.


def leave_errors_to_callers() -> None:
    """Let Py4J print no traceback of an error that it also raises.

    A failed call raises its error here; a failed batch ends its query with its error. Py4J logs
    both as well: calls through the root logger, which it configures itself when Java has ended.
    """
    root = logging.getLogger()
    if _is_not_of_py4j not in root.filters:
        root.addFilter(_is_not_of_py4j)
    logging.getLogger("py4j").propagate = False


def _is_not_of_py4j(record: logging.LogRecord) -> bool:
    """Return whether a record, logged through the root logger, comes from elsewhere."""
    return "py4j" not in Path(record.pathname).parts


def end(spark: SparkSession) -> None:
    """Stop Spark; if Java has ended already, do nothing.

    A signal to a whole process group ends Java, too, and so does a lack of memory. The caller that
    needed Java reports the reason.
    """
    from py4j.protocol import Py4JError

    with contextlib.suppress(Py4JError, OSError):
        spark.stop()


def settings_of(
    master: str, submitted: Mapping[str, str] | None = None, heap_mb: int | None = None
) -> dict[str, str]:
    """Return Spark's settings on this master; `submitted` are the settings from spark-submit.

    Raises AnalyticsError if the heap cannot be had.
    """
    chosen = dict(SETTINGS)
    if _LOCAL.fullmatch(master):
        chosen |= LOCAL_SETTINGS | {MEMORY: f"{heap_mb_of(cores_of(master))}m"}
    if heap_mb is not None:
        _check_heap(heap_mb, is_launched=not submitted)
        chosen[MEMORY] = f"{heap_mb}m"
    # Settings from spark-submit take precedence.
    return {key: value for key, value in chosen.items() if key not in (submitted or {})}


def heap_mb_of(cores: int) -> int:
    """Return the heap in MiB that a local session of so many cores needs, whatever the input."""
    return HEAP_BASE_MB + HEAP_CORE_MB * cores


def cores_of(master: str) -> int:
    """Return how many tasks a local master runs at once: `local`, `local[4]`, `local[*]`."""
    found = _LOCAL.fullmatch(master)
    assert found is not None, f"{master} is not local"
    said = found[1] or "1"
    return len(os.sched_getaffinity(0)) if said == "*" else int(said)


def _check_heap(heap_mb: int, *, is_launched: bool) -> None:
    """Raise AnalyticsError if the heap that was asked for cannot be had."""
    if not is_launched:
        raise AnalyticsError(
            f"a heap of {heap_mb} MiB was asked for, but Java runs already:"
            " give spark-submit --driver-memory"
        )
    if heap_mb < HEAP_MIN_MB:
        raise AnalyticsError(
            f"a heap of {heap_mb} MiB is too small for Spark: give at least {HEAP_MIN_MB}"
        )


def check_java() -> None:
    """Raise AnalyticsError unless a new enough Java is where Spark will look for it."""
    java = _java()
    if java is None:
        raise AnalyticsError(f"Java is missing, and Spark needs it: {JAVA_REMEDY}")
    try:
        done = subprocess.run([java, "-version"], capture_output=True, text=True, check=True)
        major = int(done.stderr.split('"')[1].split(".")[0])
    except (OSError, subprocess.CalledProcessError, IndexError, ValueError) as error:
        raise AnalyticsError(f"{java} does not say its version ({error}): {JAVA_REMEDY}") from error
    if major < JAVA_MIN:
        raise AnalyticsError(f"{java} is Java {major}, Spark needs {JAVA_MIN}: {JAVA_REMEDY}")


def _java() -> str | None:
    """Return the program that Spark's launcher will start, or None where there is none."""
    home = os.environ.get("JAVA_HOME")
    return shutil.which("java", path=f"{home}/bin" if home else None)


def _share_packages() -> None:
    """Let workers import this package too, from whatever directory the job was started."""
    root = str(Path(__file__).resolve().parents[1])
    known = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    if root not in known:
        os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [root, *known]))


def _ship_packages(session: SparkSession) -> None:
    """Send this code to executors, which may run where it is not installed."""
    if package.is_packed():
        # `--py-files` has sent this code to the executors already.
        return
    # Executors that start later fetch it from here.
    directory = tempfile.mkdtemp(prefix="viewstamp-")
    atexit.register(shutil.rmtree, directory, ignore_errors=True)
    session.sparkContext.addPyFile(str(package.write_zip(Path(directory) / PACKAGE)))


def _submitted() -> dict[str, str]:
    """Return the settings that spark-submit chose for this process; none outside of it."""
    if "PYSPARK_GATEWAY_PORT" not in os.environ:
        return {}
    from pyspark import SparkContext
    from pyspark.conf import SparkConf

    # SparkConf is empty until Python has found the Java process that started it.
    SparkContext._ensure_initialized()
    return dict(SparkConf().getAll())
