"""The size of the input decides into how many parts Spark divides it."""

from __future__ import annotations

import gzip
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from analytics import sizing
from analytics.otlp import files
from viewstamp.limits import MIB

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

GIB = 1024 * MIB


@pytest.mark.parametrize(
    ("size_bytes", "cores", "partitions"),
    [
        (0, 1, 1),
        (14 * MIB, 2, 2),
        (33 * MIB, 1, 2),
        (45 * GIB, 2, 1440),
        (45 * GIB, 3000, 3000),
        (10_000 * GIB, 8, sizing.PARTITIONS_MAX),
    ],
)
def test_partitions_follow_the_input(size_bytes: int, cores: int, partitions: int) -> None:
    """A small input keeps the cores busy and no more; a large one has parts of one size."""
    assert sizing.shuffle_partitions(size_bytes, cores) == partitions


def test_input_is_counted_as_it_is_read(tmp_path: Path) -> None:
    """The estimate counts compressed lines at full length, snapshots, and no absent file."""
    (tmp_path / "traces.jsonl").write_bytes(b"x" * 1000)
    packed = gzip.compress(b"y" * 1000)
    (tmp_path / "traces-1.jsonl.gz").write_bytes(packed)
    (tmp_path / "copy-0").mkdir()
    (tmp_path / "copy-0" / "one.layer").write_bytes(b"z" * 70)
    expected = 1000 + len(packed) * sizing.COMPRESSED_TIMES
    assert sizing.input_bytes([tmp_path], None) == expected
    assert sizing.input_bytes([tmp_path], tmp_path) == expected + 70
    assert sizing.input_bytes([tmp_path / "nowhere"], tmp_path / "nowhere") == 0


@pytest.mark.parametrize(
    ("sizes", "cores", "tasks"),
    [
        ([10 * MIB], 2, 2),
        ([6 * MIB, 4 * MIB], 2, 2),
        ([MIB // 2], 8, 1),
        ([200 * MIB], 1, 4),
    ],
)
def test_every_core_gets_a_part(tmp_path: Path, sizes: list[int], cores: int, tasks: int) -> None:
    """A small input is divided among the cores; pieces are neither tiny nor huge."""
    for number, size in enumerate(sizes):
        with (tmp_path / f"{number}.jsonl").open("wb") as file:
            file.truncate(size)
    plan = files.plan([tmp_path], cores)
    assert len(plan.tasks) == tasks
    assert sum(piece.end - piece.start for task in plan.tasks for piece in task) == sum(sizes)


def test_a_chosen_number_stands(spark: SparkSession) -> None:
    """A configured number of partitions, as in the tests' own session, does not change."""
    assert sizing.fit(spark, 45 * GIB) == 1
    assert spark.conf.get(sizing.SHUFFLE_PARTITIONS) == "1"
