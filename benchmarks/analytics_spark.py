"""One run of the analysis, for `analytics`: `OUTPUT TRACES...`; prints its seconds as JSON."""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Final

from analytics import job, session, sizing, tables
from analytics.traces import Period
from testkit.generators.spans import START_NS

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from analytics.schema import TableSchema

MASTER: Final = "local[2]"
# The generator's commands begin at this time; every size has at least a minute of them.
START_US: Final = START_NS // 1000
PERIOD_US: Final = 5_000_000
PERIODS: Final = (
    Period(START_US, START_US + PERIOD_US),
    Period(START_US + PERIOD_US, START_US + 2 * PERIOD_US),
)


def main(arguments: list[str]) -> int:
    """Analyse, and print the seconds of the run, of each step, and of each table beside others."""
    output, *traces = map(Path, arguments)
    request = job.AnalysisRequest(
        output=output,
        traces=tuple(traces),
        compare=PERIODS,
        report=output / "report.html",
    )
    begun = time.monotonic()
    is_brief = sizing.input_bytes(traces, None) < sizing.BRIEF_BYTES
    spark = session.build("viewstamp-analytics", MASTER, is_brief=is_brief)
    started_s = time.monotonic() - begun
    table_s = _timed_tables()
    outcome = job.run(spark, request, _tell)
    total_s = time.monotonic() - begun
    spans = int(outcome.quality["spans"])
    spark.stop()
    steps = {"starting Spark": started_s} | outcome.seconds
    told = {
        "total_s": round(total_s, 1),
        "spans": spans,
        "steps_s": {name: round(seconds, 1) for name, seconds in steps.items()},
        "tables_s": {name: round(seconds, 1) for name, seconds in table_s.items()},
    }
    print(json.dumps(told))
    return 0


def _timed_tables() -> dict[str, float]:
    """Time every table that is written; return the dictionary that gets the seconds."""
    write, seconds = tables.write, dict[str, float]()

    def timed(dataframe: DataFrame, table: TableSchema, output: Path) -> Path:
        begun = time.monotonic()
        path = write(dataframe, table, output)
        seconds[table.name] = time.monotonic() - begun
        return path

    tables.write = timed
    return seconds


def _tell(step: str, seconds: float | None) -> None:
    if seconds is not None:
        print(f"  {step}: {seconds:.1f} s", file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
