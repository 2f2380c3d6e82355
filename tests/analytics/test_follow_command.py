"""`viewstamp analyze --follow`, stopped, killed and started again, writes the tables of a batch."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import IO, TYPE_CHECKING, Final

import pytest

from analytics import follow, job, tables
from analytics.schema import DATA_QUALITY, QUARANTINE, RPC_RED, SPANS, TableSchema
from testkit.generators.spans import SpanLoad, generate
from tests.tidy.tree import ROOT

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

LOAD: Final = SpanLoad(3000, seed=5, duplicate_line_rate=0.1, spans_per_line=20)
PARTS: Final = 3
COMPARED: Final = (SPANS, QUARANTINE, RPC_RED)
# A stream does not count files, so these metrics exist only in a batch.
COUNTED_ELSEWHERE: Final = "files"


class Growing:
    """A directory of traces that are written bit by bit, as processes write them."""

    def __init__(self, directory: Path) -> None:
        """Make the lines; write none of them yet."""
        generate(directory / "whole", LOAD)
        self.directory = directory / "telemetry"
        self._whole = sorted((directory / "whole").rglob("*.jsonl"))
        self._written = 0

    def grow(self) -> None:
        """Append the next part of every file's lines."""
        self._written += 1
        for path in self._whole:
            lines = path.read_bytes().splitlines(keepends=True)
            at = [len(lines) * part // PARTS for part in (self._written - 1, self._written)]
            target = self.directory / path.parent.name / path.name
            target.parent.mkdir(parents=True, exist_ok=True)
            with target.open("ab") as file:
                file.writelines(lines[slice(*at)])


class Following:
    """The command, and its lines on stderr."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        """Wrap the process."""
        self.process = process
        self._said: list[str] = []

    def says(self, word: str) -> None:
        """Wait for a line with this word."""
        assert self.process.stderr is not None
        for line in self.process.stderr:
            self._said.append(line)
            if word in line:
                return
        raise AssertionError(f"it never said {word!r}, but {''.join(self._said)}")

    def end(self, number: int, *, with_java: bool = False) -> int:
        """Send a signal to the process, or to its whole group, and return how it ended."""
        assert self.process.stderr is not None
        if with_java:
            os.killpg(self.process.pid, number)
        else:
            self.process.send_signal(number)
        self._said.append(self.process.stderr.read())
        return self.process.wait()

    @property
    def said(self) -> str:
        """Return all lines that were read from stderr."""
        return "".join(self._said)


@contextlib.contextmanager
def following(traces: Path, output: Path) -> Iterator[Following]:
    """Start the command; it ends with the context."""
    command = [sys.executable, "-m", "viewstamp.cli", "analyze", "--traces", str(traces)]
    command += ["--output", str(output), "--follow", "--refresh-seconds", "1"]
    # The tests read stderr; nobody reads stdout.
    sink: IO[bytes]
    with (output.parent / "stdout").open("ab") as sink:
        process = subprocess.Popen(
            [*command, "--master", "local[2]"],
            cwd=ROOT,
            env=os.environ | {"SPARK_CONF_DIR": str(_fast(output.parent))},
            stdout=sink,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        try:
            yield Following(process)
        finally:
            process.kill()
            process.wait()
            assert process.stderr is not None
            process.stderr.close()


def _fast(directory: Path) -> Path:
    """Return a configuration with one shuffle partition, as the tests' own session has it."""
    conf = directory / "conf"
    conf.mkdir(exist_ok=True)
    (conf / "spark-defaults.conf").write_text("spark.sql.shuffle.partitions 1\n")
    return conf


# It takes minutes; `test_killed_stream_goes_on` compares a stream with a batch more often.
@pytest.mark.exhaustive
def test_followed_equals_batch(spark: SparkSession, tmp_path: Path) -> None:
    """Nothing is lost by an interrupt between batches, a kill within one and an end with Java."""
    growing = Growing(tmp_path)
    output = tmp_path / "out"
    growing.grow()
    with following(growing.directory, output) as first:
        first.says("reading batch 0, ")
        first.says("writing the report: ")
        assert first.end(signal.SIGINT) == 0, first.said
        assert "the same command goes on" in first.said
    growing.grow()
    with following(growing.directory, output) as second:
        second.says("reading batch 1 …")
        assert second.end(signal.SIGKILL) == -signal.SIGKILL
    ledger = output / ".stream" / "ledger"
    assert [path.name for path in ledger.iterdir()] == ["0.json"], "batch 1 was killed too late"
    growing.grow()
    with following(growing.directory, output) as third:
        third.says("reading batch 1, ")
        third.says("reading batch 2, ")
        third.says("writing the report: ")
        assert third.end(signal.SIGTERM, with_java=True) == 0, third.said
        assert "the same command goes on" in third.said
        assert "Traceback" not in third.said, third.said
    request = job.AnalysisRequest(tmp_path / "batch", traces=(growing.directory,))
    job.run(spark, request, lambda *_: None)
    for table in COMPARED:
        assert rows(spark, table, output) == rows(spark, table, request.output), table.name
    assert quality(spark, output) == quality(spark, request.output)
    assert (output / "report.html").is_file()


def rows(spark: SparkSession, table: TableSchema, output: Path) -> list[str]:
    """Return all rows, in an order."""
    return sorted(map(str, tables.read(spark, table, output).collect()))


def quality(spark: SparkSession, output: Path) -> dict[str, float]:
    """Return the metrics of the data's quality."""
    found = tables.read(spark, DATA_QUALITY, output).collect()
    return {row.metric: row.value for row in found if row.metric != COUNTED_ELSEWHERE}


@pytest.mark.parametrize(
    ("traces", "says"),
    [((), "only traces can be followed"), ((Path("nowhere"),), "nowhere does not exist")],
)
def test_what_cannot_be_followed(traces: tuple[Path, ...], says: str, tmp_path: Path) -> None:
    """Following without traces, or from an absent directory, is an error."""
    request = job.AnalysisRequest(tmp_path, traces=traces, snapshots=tmp_path)
    with pytest.raises(follow.FollowError, match=says):
        follow.check(request)
