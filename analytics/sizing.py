"""The size of the input, and the settings of Spark that follow from it.

Spark's defaults are for large inputs: 200 partitions in every shuffle, each of which costs some
milliseconds even if it is empty, and a compiler that pays off after a minute.
"""

from __future__ import annotations

from collections.abc import Iterable, Set
from pathlib import Path
from typing import TYPE_CHECKING, Final

from analytics.otlp import files
from analytics.otlp.forms import OtlpForm
from viewstamp.limits import MIB

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# Bytes of OTLP JSON lines: about 75,000 spans, two seconds of walking traces on one core.
PARTITION_BYTES: Final = 32 * MIB
# More partitions do not help: each task of a shuffle writes a part for each of them.
PARTITIONS_MAX: Final = 10_000
# JSON lines of spans are compressed to about a tenth.
COMPRESSED_TIMES: Final = 10
# Below this, most of the time goes into compiling Java code that runs once.
BRIEF_BYTES: Final = 128 * MIB
SHUFFLE_PARTITIONS: Final = "spark.sql.shuffle.partitions"


def input_bytes(traces: Iterable[Path], snapshots: Path | None) -> int:
    """Estimate the bytes of the input without compression.

    A directory of snapshots holds three copies of data compressed to about a third, so the sum of
    its files is the estimate. Absent or unreadable files count as nothing; their reader reports
    them.
    """
    named = frozenset(traces)
    total = sum(_lines_bytes(path, named) for path in files.find(named))
    if snapshots is not None:
        total += sum(_size(path) for path in snapshots.rglob("*.layer"))
    return total


def fit(spark: SparkSession, size_bytes: int) -> int:
    """Set the shuffle partitions that the input fills, unless the user chose; return them."""
    if not spark.sparkContext.getConf().contains(SHUFFLE_PARTITIONS):
        count = shuffle_partitions(size_bytes, spark.sparkContext.defaultParallelism)
        spark.conf.set(SHUFFLE_PARTITIONS, str(count))
    return int(str(spark.conf.get(SHUFFLE_PARTITIONS)))


def shuffle_partitions(size_bytes: int, cores: int) -> int:
    """Return one partition for each PARTITION_BYTES, and at least one for each core."""
    assert cores > 0, f"{cores} cores: there is at least one"
    return max(cores, min(PARTITIONS_MAX, -(-size_bytes // PARTITION_BYTES)))


def _lines_bytes(path: Path, named: Set[Path]) -> int:
    """Return how long a file of OTLP is when it is read; 0 if it is skipped."""
    try:
        found = files.probe(path, named)
    except OSError:
        return 0
    if found.form is OtlpForm.FOREIGN:
        return 0
    return found.size if found.compression == files.PLAIN else found.size * COMPRESSED_TIMES


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0
