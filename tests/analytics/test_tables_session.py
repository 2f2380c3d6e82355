"""The Spark session starts where it can, and says in one line why where it cannot."""

from __future__ import annotations

import os
import socket
import socketserver
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pytest

import analytics
from analytics import session
from analytics.__main__ import main
from tests.tidy.tree import ROOT
from viewstamp.limits import MIB

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# Kills Java within a call. Java has not read the last bytes, so the connection is reset; the next
# call finds no Java at all.
KILL_JAVA_IN_A_CALL: Final = """
import os, signal, threading
from analytics import session

spark = session.build("killed", "local[1]", is_brief=True)
gateway = spark.sparkContext._gateway
connection = gateway._gateway_client.get_thread_connection()

def kill():
    connection.socket.sendall(b"unread\\n")
    os.kill(gateway.proc.pid, signal.SIGKILL)

threading.Timer(1, kill).start()
for _ in range(2):
    try:
        spark._jvm.java.lang.Thread.sleep(60_000)
    except Exception as error:
        print("raised", type(error).__name__)
session.end(spark)
"""


def test_folder_hides_no_package() -> None:
    """From inside `tests/analytics`, `import analytics` finds the package, not this folder."""
    assert Path(analytics.__file__).parent != Path(__file__).parent
    assert Path(session.__file__).parts[-2:] == ("analytics", "session.py")


def test_session_counts_in_utc(spark: SparkSession) -> None:
    """The session has our settings: days are those of UTC whatever the machine's zone."""
    assert spark.conf.get("spark.sql.session.timeZone") == "UTC"
    assert spark.range(3).count() == 3


@pytest.mark.parametrize(
    ("script", "complaint"),
    [
        (None, "Java is missing"),
        ("echo 'openjdk version \"11.0.2\"' >&2", "is Java 11, Spark needs 17"),
        ("echo nonsense >&2", "does not say its version"),
        ("exit 1", "does not say its version"),
    ],
)
def test_unfit_java_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: str | None, complaint: str
) -> None:
    """Without a fitting Java the error is one line that says what to install."""
    java = tmp_path / "bin" / "java"
    java.parent.mkdir()
    if script is not None:
        java.write_text(f"#!/bin/sh\n{script}\n")
        java.chmod(0o755)
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    with pytest.raises(session.AnalyticsError, match=complaint) as caught:
        session.check_java()
    assert "openjdk-17-jre-headless" in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("master", "heap_mb", "memory"),
    [
        ("local", None, "1280m"),
        ("local[2]", None, "1536m"),
        ("local[16, 4]", None, "5120m"),
        ("local[2]", 3000, "3000m"),
        ("spark://here:7077", None, None),
        ("spark://here:7077", 3000, "3000m"),
    ],
)
def test_heap_is_that_of_the_cores(master: str, heap_mb: int | None, memory: str | None) -> None:
    """The heap follows from the cores locally, is Spark's default on a cluster, or as asked for."""
    assert session.settings_of(master, heap_mb=heap_mb).get(session.MEMORY) == memory


def test_all_cores_are_those_of_this_process() -> None:
    """`local[*]` counts the cores that this process may use, as Java does."""
    assert session.cores_of("local[*]") == len(os.sched_getaffinity(0))


def test_what_was_submitted_stands() -> None:
    """spark-submit has started Java with its heap, so no other heap is set or accepted."""
    submitted = {session.MEMORY: "7g", "spark.sql.shuffle.partitions": "9"}
    chosen = session.settings_of("local[2]", submitted)
    assert not chosen.keys() & submitted.keys()
    with pytest.raises(session.AnalyticsError, match="give spark-submit --driver-memory"):
        session.settings_of("local[2]", submitted, 2048)


@pytest.mark.parametrize(
    ("error", "is_printed"),
    [(EOFError(), False), (ConnectionResetError(), False), (ValueError("garbage"), True)],
)
def test_the_end_of_java_prints_no_traceback(
    error: Exception, is_printed: bool, capfd: pytest.CaptureFixture[str]
) -> None:
    """A connection that breaks off as Java ends is ignored, and every other error is printed."""

    class Reader(socketserver.BaseRequestHandler):
        def handle(self) -> None:
            raise error

    with socketserver.TCPServer(("127.0.0.1", 0), Reader) as server:
        session.overlook_end_of_java(server)
        port = server.socket.getsockname()[1]
        socket.create_connection(("127.0.0.1", port)).close()
        server.handle_request()
    assert ("Traceback" in capfd.readouterr().err) is is_printed


def test_a_call_that_java_does_not_survive_raises_and_prints_nothing() -> None:
    """Each call of Java that fails raises one error, and none prints a traceback as well."""
    done = subprocess.run(
        [sys.executable, "-c", KILL_JAVA_IN_A_CALL],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    assert [line.split()[0] for line in done.stdout.splitlines()] == ["raised", "raised"]
    assert "Traceback" not in done.stderr, done.stderr


def test_too_small_a_heap_is_refused() -> None:
    """A heap that is too small gives one line that names the smallest sufficient heap."""
    with pytest.raises(session.AnalyticsError, match=f"at least {session.HEAP_MIN_MB}"):
        session.settings_of("local[2]", heap_mb=session.HEAP_MIN_MB - 1)
    assert session.settings_of("local", heap_mb=session.HEAP_MIN_MB)


def test_java_has_the_heap_that_was_set(spark: SparkSession) -> None:
    """Java uses the setting: its heap is the 2 GiB of the tests' session."""
    runtime = spark._jvm.java.lang.Runtime.getRuntime()  # type: ignore[union-attr]
    assert runtime.maxMemory() == 2048 * MIB


def test_only_what_was_moved_decides_what_is_sent_to_all(spark: SparkSession) -> None:
    """A join does not hold a million rows with few bytes on disk in the driver.

    Judged by file size Spark would: it did with 2.5 million spans, and ran out of memory.
    """
    rows = spark.range(1_000_000).selectExpr("id AS key", "id DIV 1000 AS value")
    with tempfile.TemporaryDirectory() as directory:
        rows.write.parquet(f"{directory}/rows")
        read = spark.read.parquet(f"{directory}/rows")
        joined = read.join(read.withColumnRenamed("value", "other"), "key")
        assert joined.where("value = other").count() == 1_000_000
        plan = joined._jdf.queryExecution().executedPlan().toString()
    assert "Broadcast" not in plan
    assert spark.conf.get("spark.sql.autoBroadcastJoinThreshold") == "-1"


def test_parts_of_a_shuffle_are_small_enough_to_join_in_memory() -> None:
    """Spark joins without sorting only where each part fits into memory."""
    part, fits = (
        session.SETTINGS[f"spark.sql.adaptive.{name}"]
        for name in ("advisoryPartitionSizeInBytes", "maxShuffledHashJoinLocalMapThreshold")
    )
    assert part == fits == session.TASK_PART


@pytest.mark.parametrize("mode", [[], ["--follow"]])
def test_the_command_asks_for_its_heap(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], mode: list[str]
) -> None:
    """`--heap-mb` reaches the session, with or without `--follow`; a wrong size gives one line."""
    (tmp_path / "a.jsonl").write_text("{}\n")
    where = ["--traces", str(tmp_path), "--output", str(tmp_path / "out")]
    assert main([*where, *mode, "--heap-mb", "100"]) == 1
    assert capsys.readouterr().err.startswith("analyze: a heap of 100 MiB is too small for Spark")
