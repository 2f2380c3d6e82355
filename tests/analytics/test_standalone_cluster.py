"""The job on a real cluster gives the tables of a local run, also when a worker is killed."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import pytest

from analytics import job
from testkit.generators.history import StateLife, write_history
from testkit.generators.spans import SpanLoad, generate
from tests.analytics import standalone_cluster as standalone
from tests.analytics.same_tables import assert_same_tables
from tests.tidy.tree import ROOT

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

LOAD: Final = SpanLoad(6_000, seed=7, error_rate=0.05, duplicate_line_rate=0.1, cut_line_rate=0.02)
LIFE: Final = StateLife(generations=4)
# A worker has results of so many tasks before it is killed.
TASKS_BEFORE_KILL: Final = 10


@pytest.fixture(scope="module")
def inputs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a data directory with traces and snapshots."""
    data = tmp_path_factory.mktemp("data")
    generate(data / "telemetry", LOAD)
    write_history(data, LIFE, seed=7)
    return data


@pytest.fixture(scope="module")
def local(spark: SparkSession, inputs: Path) -> Path:
    """Return the tables of a run on this machine alone."""
    request = job.AnalysisRequest(
        inputs / "local", traces=(inputs / "telemetry",), snapshots=inputs
    )
    job.run(spark, request, lambda *_: None)
    return request.output


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[standalone.SparkCluster]:
    """Yield a master and two workers, started once."""
    with standalone.cluster(tmp_path_factory.mktemp("cluster")) as made:
        yield made


@pytest.mark.exhaustive
def test_analyze_on_a_cluster(
    spark: SparkSession, inputs: Path, local: Path, cluster: standalone.SparkCluster, tmp_path: Path
) -> None:
    """`viewstamp analyze --master spark://…` writes the tables of a local run."""
    command = [sys.executable, "-m", "viewstamp.cli", "analyze", "--data-directory", str(inputs)]
    command += ["--output", str(tmp_path / "out"), "--master", cluster.master]
    bare = {"PYSPARK_PYTHON": str(standalone.bare_interpreter(cluster.directory))}
    environment = standalone.environment(cluster.directory) | bare
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, check=False)
    assert done.returncode == 0, done.stderr.decode()
    assert_same_tables(spark, tmp_path / "out", local)
    assert (tmp_path / "out" / "report.html").stat().st_size > 0


@pytest.mark.long
def test_killed_worker_changes_nothing(
    spark: SparkSession, inputs: Path, local: Path, cluster: standalone.SparkCluster, tmp_path: Path
) -> None:
    """A job under spark-submit whose worker and executor are killed writes the same tables."""
    ui = standalone.free_port()
    command = submission(cluster, inputs, tmp_path, ui)
    environment = standalone.environment(cluster.directory)
    log = tmp_path / "submit.log"
    with log.open("wb") as file:
        submitted = subprocess.Popen(command, cwd=tmp_path, env=environment, stderr=file)
        try:
            victim, executor = standalone.until(
                "an executor is at work", lambda: at_work(cluster, submitted, ui)
            )
            victim.kill()
            assert submitted.wait() == 0, log.read_text()
        finally:
            standalone.end(submitted)
    assert_same_tables(spark, tmp_path / "out", local)
    told = list(events(tmp_path / "events"))
    removed = [at for at, event in enumerate(told) if is_removal(event, executor)]
    assert removed, f"executor {executor} was not lost while the job ran"
    later = {task_executor(event) for event in told[removed[0] :]} - {None}
    assert later, "nothing was left to do when the worker was killed"
    assert executor not in later


def submission(
    cluster: standalone.SparkCluster, inputs: Path, directory: Path, ui: int
) -> list[str]:
    """Return the command: the entry point of docs/analytics.md, with an event log and a UI."""
    bare = standalone.bare_interpreter(cluster.directory)
    (directory / "events").mkdir()
    settings = {
        "spark.pyspark.python": str(bare),
        "spark.pyspark.driver.python": str(bare),
        "spark.executor.memory": "512m",
        "spark.driver.host": standalone.HOST,
        "spark.ui.enabled": "true",
        "spark.ui.port": str(ui),
        "spark.eventLog.enabled": "true",
        "spark.eventLog.dir": (directory / "events").as_uri(),
        "spark.eventLog.compress": "false",
    }
    command = [str(standalone.SPARK_HOME / "bin" / "spark-submit"), "--master", cluster.master]
    command += [part for pair in settings.items() for part in ("--conf", "=".join(pair))]
    command += [str(ROOT / "analytics" / "__main__.py"), "--traces", str(inputs / "telemetry")]
    return [*command, "--snapshots", str(inputs), "--output", str(directory / "out")]


def at_work(
    cluster: standalone.SparkCluster, submitted: subprocess.Popen[bytes], ui: int
) -> tuple[standalone.Worker, str] | None:
    """Return a worker whose executor runs a task and has ended some, and the executor's id."""
    assert submitted.poll() is None, "the job ended before a worker could be killed"
    base = f"http://{standalone.HOST}:{ui}/api/v1/applications"
    (application,) = standalone.get(base)
    for one in standalone.get(f"{base}/{application['id']}/executors"):
        is_busy = one["activeTasks"] > 0 and one["completedTasks"] >= TASKS_BEFORE_KILL
        for worker in cluster.workers if is_busy else ():
            if worker.process.poll() is None and one["id"] in worker.executors():
                return worker, one["id"]
    return None


def events(directory: Path) -> Iterator[dict[str, Any]]:
    """Yield the events that Spark logged for the job, in order."""
    for path in sorted(directory.rglob("events_*")):
        yield from map(json.loads, path.read_text().splitlines())


def is_removal(event: dict[str, Any], executor: str) -> bool:
    """Return whether the event says that the executor is lost."""
    named = event.get("Executor ID") == executor
    return named and event["Event"] == "SparkListenerExecutorRemoved"


def task_executor(event: dict[str, Any]) -> str | None:
    """Return the executor on which a task began, if the event reports such a start."""
    if event["Event"] != "SparkListenerTaskStart":
        return None
    return str(event["Task Info"]["Executor ID"])
