"""The generator of snapshot histories writes files that the snapshot tools accept."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from analytics.snapshots import change, garbage, growth, reading, sizes
from testkit.generators.history import StateLife, write_history
from tests.analytics.snapshot_cases import arrow, collected, rows
from viewstamp.limits import SNAPSHOT_COPIES
from viewstamp.snapshots.copies import Copies, copy_directories
from viewstamp.snapshots.verify import GenerationVerdict, verify

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

LIFE = StateLife(generations=12)


def test_histories_verify(tmp_path: Path) -> None:
    """Every generation adds up to its digests and roots, in all copies."""
    write_history(tmp_path, LIFE, seed=2)
    copies = Copies(copy_directories(tmp_path))
    assert copies.generations() == list(range(1, LIFE.generations + 1))
    assert len(copies.directories) == SNAPSHOT_COPIES
    for generation in copies.generations():
        verdicts = [one for one in verify(copies, generation) if isinstance(one, GenerationVerdict)]
        assert [one.is_intact for one in verdicts] == [True], verdicts
    assert not copies.bad


def test_histories_follow_from_the_seed(tmp_path: Path) -> None:
    """The same seed gives the same files, another one others."""
    for name, seed in (("a", 1), ("b", 1), ("c", 2)):
        write_history(tmp_path / name, LIFE, seed=seed, copies=["copy-0"])
    layers = [
        sorted(path.name for path in (tmp_path / name).rglob("*.layer")) for name in ("a", "b", "c")
    ]
    assert layers[0] == layers[1] != layers[2]


def test_histories_have_something_to_find(tmp_path: Path) -> None:
    """Histories have deltas, merged bases, tombstones, dangling grants and every kind of change."""
    write_history(tmp_path, LIFE, seed=3)
    layers = rows(tmp_path, "layers", generation="all")
    assert any(not row["is_base"] and row["tombstones"] for row in layers)
    assert any(row["is_base"] and row["layer_generation"] > 1 for row in layers)
    changes = rows(tmp_path, "changes", generation="all")
    for what in ("added", "changed", "removed"):
        assert any(row[what] for row in changes if row["generation"] > 1)


@pytest.mark.long
def test_large_histories_are_read_in_parallel(spark: SparkSession, tmp_path: Path) -> None:
    """Spark reads many partitions of a history of some 100,000 entities, and the tables agree."""
    life = replace(LIFE, generations=4, streams=800, topics_per_stream=30, users=2000)
    writer = write_history(tmp_path, life, seed=4, copies=["copy-0"])
    directory = tmp_path / "snapshots" / "copy-0"

    def read(view: str) -> DataFrame:
        return reading.read(spark, directory, view=view, generation="all", partition_bytes=1 << 20)

    facts, sections = read("facts").persist(), read("sections").persist()
    assert facts.rdd.getNumPartitions() > 4
    newest = facts.where(f"generation = {life.generations} AND NOT is_grant")
    assert newest.count() == sum(map(len, writer.states.values()))
    counted = sections.where(f"generation = {life.generations}").groupBy().sum("entities")
    assert collected(counted) == [(newest.count(),)]
    assert arrow(directory, "facts", generation="all").num_rows == facts.count()
    assert sizes.tenants(facts).groupBy().sum("entities").first() is not None
    assert garbage.garbage(facts).count() == life.generations * len(garbage.ALL)
    assert growth.growth(sections).count() == 5
    changes = read("changes").persist()
    assert change.churn(changes).count() == 5 * life.generations
    assert change.amplification(read("layers"), changes).count() == life.generations
