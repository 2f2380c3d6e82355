"""The Spark session that all analyses run in, and clear words where it cannot start."""

from __future__ import annotations

import atexit
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Final

from analytics import package

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pyspark.sql import SparkSession

MASTER_DEFAULT: Final = "local[*]"
JAVA_MIN: Final = 17
PACKAGE: Final = "viewstamp-analytics.zip"
JAVA_REMEDY: Final = "install the Debian package `openjdk-17-jre-headless`, or set JAVA_HOME"
SPARK_REMEDY: Final = "install the extra `analytics`: pip install 'viewstamp[analytics]'"

# What holds on every master. Values are Spark's own spelling.
SETTINGS: Final[dict[str, str]] = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    # Days and minutes are those of UTC, wherever the job runs.
    "spark.sql.session.timeZone": "UTC",
    # A producer may write an attribute twice; the later one is what it meant.
    "spark.sql.mapKeyDedupPolicy": "LAST_WIN",
    "spark.sql.execution.arrow.pyspark.enabled": "true",
    # A row of spans can be large; a batch of the default 10,000 rows could be hundreds of MB.
    "spark.sql.execution.arrow.maxRecordsPerBatch": "4096",
    "spark.sql.parquet.compression.codec": "zstd",
    # A task writes spans of few days and services: with a file open for each, nothing is sorted.
    "spark.sql.maxConcurrentOutputFileWriters": "16",
}
# A local session talks to itself only, so a name that resolves elsewhere does not matter.
LOCAL_SETTINGS: Final[dict[str, str]] = {
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    # The whole of Spark is this one process; its default of 1 GiB is for tests of Spark.
    "spark.driver.memory": "4g",
}
# Java compiles quickly and not well: half the time where all is over in a minute.
BRIEF_OPTIONS: Final = "-XX:TieredStopAtLevel=1"


class AnalyticsError(Exception):
    """A reason why no answer can be given: one line that says what is wrong and the way out."""


def build(
    name: str,
    master: str | None = None,
    settings: Mapping[str, str] | None = None,
    *,
    is_brief: bool = False,
) -> SparkSession:
    """Return the Spark session, started if there is none yet.

    `master` is Spark's address (`local[4]`, `spark://host:7077`); without it the one that
    spark-submit set is kept, else all cores of this machine are used. `settings` come last.
    `is_brief` says that there is little to do: a local session then starts its work sooner.
    Raises AnalyticsError where Java or pyspark is missing or too old.
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
    chosen = dict(SETTINGS)
    is_local = master == "local" or master.startswith("local[")
    if is_local:
        os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
        chosen |= LOCAL_SETTINGS
        if is_brief:
            os.environ.setdefault("SPARK_SUBMIT_OPTS", BRIEF_OPTIONS)
    # What spark-submit was told stands.
    chosen = {key: value for key, value in chosen.items() if key not in submitted}
    builder = SparkSession.builder.appName(name).master(master)
    for key, value in (chosen | dict(settings or {})).items():
        builder = builder.config(key, value)
    session = builder.getOrCreate()
    session.sparkContext.setLogLevel("ERROR")
    if not (is_local and is_launched):
        _ship_packages(session)
    return session


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
        # It came by `--py-files`, and so has gone to them already.
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

    # Until Python has found the Java process that started it, SparkConf knows of nothing.
    SparkContext._ensure_initialized()
    return dict(SparkConf().getAll())
