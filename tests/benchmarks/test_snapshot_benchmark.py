"""The benchmark of snapshots makes, reads and judges the right things."""

from __future__ import annotations

import json
import random
import time
from datetime import UTC, datetime
from pathlib import Path

import pytest

from benchmarks import etcd_client, snapshot_files
from benchmarks.snapshot_files import (
    Compaction,
    WrittenFiles,
    adoptions,
    compactions,
    is_to_be_merged,
    written,
)
from benchmarks.snapshot_load import TimedSamples, read_calls
from benchmarks.snapshot_state import FULL, QUICK, Size, StateTopics, chosen
from benchmarks.snapshot_turns import TimedSnapshot, beside, intervals, overlapping
from benchmarks.snapshots import CHANGED, PARTS, parse, report
from benchmarks.targets import SNAPSHOT_TARGETS, Figures
from coordinator.mux.stage import Stage
from tests.viewstamp.snapshots.generations import two_generations
from viewstamp.api.streams.v1 import streams_service_pb2 as streams_pb2
from viewstamp.limits import TOPICS_PER_STREAM_MAX


def test_the_state_is_the_one_of_the_targets() -> None:
    """A million partitions in 100,000 topics, 10,000 groups, 1,000 users; quick is a tenth."""
    assert (FULL.topics, FULL.topics * FULL.partitions_per_topic) == (100_000, 1_000_000)
    assert (FULL.groups, FULL.users) == (10_000, 1_000)
    assert (QUICK.topics, QUICK.groups, QUICK.users) == (10_000, 1_000, 100)
    assert FULL.topics_per_stream <= TOPICS_PER_STREAM_MAX


def test_topics_are_found_where_they_were_made() -> None:
    """Each number is a topic of its own, and is created, changed and read under one name."""
    topics = StateTopics([5, 6], Size(2, 3, 10, 1, 1))
    made = [topics.create(number) for number in range(topics.count)]
    assert all(isinstance(one, streams_pb2.CreateTopicRequest) for one in made)
    places = [(one.stream.id, one.name) for one in made]  # type: ignore[attr-defined]
    assert [place[0] for place in places] == [5, 5, 5, 6, 6, 6]
    assert len({name for _, name in places}) == topics.count
    for number, place in enumerate(places):
        for other in (topics.update(number, 7), topics.get(number), topics.create_group(number)):
            found = (other.stream.id, other.topic.name)  # type: ignore[attr-defined]
            assert found == place


@pytest.mark.parametrize("clustered", [True, False])
def test_parts_have_the_size_asked_for(clustered: bool) -> None:
    """Every draw has as many topics as asked for, none twice; neighbours have no gap."""
    chance = random.Random(3)
    for count in (1, 10, 1000):
        numbers = list(chosen(1000, count, clustered=clustered, chance=chance))
        assert len(set(numbers)) == count
        assert set(numbers) <= set(range(1000))
        assert not clustered or numbers == list(range(numbers[0], numbers[0] + count))


def test_parts_of_the_state() -> None:
    """1 % and 0.01 % of the topics are a thousand, and ten."""
    assert [FULL.topics * part // 10_000 for part in CHANGED.values()] == [1000, 10]


def test_only_new_files_count() -> None:
    """A generation has written the files that the one before did not have."""
    first = WrittenFiles({"1.manifest": 10, "aa": 1000, "bb": 200})
    second = WrittenFiles({"2.manifest": 11, "aa": 1000, "cc": 5})
    assert first.bytes_beside(None) == first.size_bytes == 1210
    assert (second.bytes_beside(first), second.size_bytes) == (16, 1016)


def test_written_files_are_those_on_disk(tmp_path: Path) -> None:
    """Names and bytes are those of the files in a copy directory."""
    replica = two_generations(tmp_path / "data")
    for number in (1, 2):
        files = written(replica.path, number).files
        there = {Path(name).name: len(data) for name, data in replica.files().items()}
        for name, size_bytes in files.items():
            assert there.get(name, there.get(f"{name}.layer")) == size_bytes
    assert written(replica.path, 2).bytes_beside(written(replica.path, 1)) > 0


def test_a_merge_is_foreseen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The coordinator's rule tells whether a section gets a new base; two tiny layers do not."""
    replica = two_generations(tmp_path / "data")
    assert not is_to_be_merged(replica.path, 2, Stage.STREAMS)
    for first, expected in ((0, True), (1, False), (None, False)):
        monkeypatch.setattr(snapshot_files, "first_to_merge", lambda _, first=first: first)
        assert is_to_be_merged(replica.path, 2, Stage.STREAMS) is expected


def test_adoptions_are_read_from_the_log(tmp_path: Path) -> None:
    """Each has the time of its line, in seconds since 1970."""
    log = tmp_path / "coordinator.log"
    lines = [
        "no JSON",
        line("01.500000", "snapshot adopted", generation=1),
        line("02.000000", "section compacted", stage=3, bytes=900),
        line("03.250000", "snapshot adopted", generation=2),
    ]
    log.write_text("\n".join(lines) + "\n")
    first_s = datetime(2026, 1, 31, 12, 0, 1, 500_000, tzinfo=UTC).timestamp()
    assert adoptions(log) == {1: first_s, 2: first_s + 1.75}


def test_calls_come_back_as_they_were_timed(tmp_path: Path) -> None:
    """The file of the load has all calls that count, and no others."""
    samples = TimedSamples(1.0, 5.0, started=10.0)
    samples.add(10.0, 10.5)  # while warming up
    samples.add(10.9, 11.25)
    samples.add(12.0, 12.5)
    samples.add(15.9, 16.5)  # too late
    samples.write(tmp_path / "calls")
    found = [at for call in read_calls(tmp_path / "calls") for at in call]
    assert found == pytest.approx([10.9, 11.25, 12.0, 12.5])


def test_calls_overlap_with_snapshots() -> None:
    """A call counts if a snapshot was under way at any moment of it, and counts once."""
    under_way = [(1.0, 2.0), (2.5, 3.0), (7.0, 8.0)]
    calls = [
        (0.0, 0.9),  # before
        (0.5, 1.1),  # into the first
        (1.2, 1.3),  # within
        (1.9, 2.6),  # beside two of them
        (2.1, 2.4),  # between
        (0.5, 9.0),  # around all
        (7.9, 8.5),  # out of the last
        (8.5, 9.5),  # after
    ]
    expected = [0.6, 0.1, 0.7, 8.5, 0.6]
    assert overlapping(calls, under_way) == pytest.approx(expected)


def test_snapshots_before_the_load_do_not_count() -> None:
    """While the load starts, the cluster is idle, so snapshots of that time do not count."""
    taken = [TimedSnapshot(number, 0.1 * number, 0.0, 0.0) for number in range(1, 5)]
    under_way = [(0.0, 0.5), (0.9, 1.2), (1.4, 1.9), (3.5, 4.0)]
    calls = [(1.0 + index * 0.01, 1.005 + index * 0.01) for index in range(200)]
    figures = beside(calls, taken, under_way)
    assert (figures["snapshots"], figures["snapshot_max_s"]) == (2, 0.3)
    assert figures["overlapped_commands"] == len(overlapping(calls, under_way))
    assert figures["overlapped_p99_ms"] == pytest.approx(5.0)


def test_snapshots_are_under_way_until_they_are_adopted() -> None:
    """A snapshot lasts from the cut to the adoption, or to the decision if none is known."""
    now_s, here_s = time.time(), time.perf_counter()
    taken = [TimedSnapshot(1, 0.5, now_s, now_s + 1), TimedSnapshot(2, 0.5, now_s + 2, now_s + 3)]
    found = intervals(taken, {1: now_s + 1.5})
    expected = [here_s, here_s + 1.5, here_s + 2, here_s + 3]
    assert [at for each in found for at in each] == pytest.approx(expected, abs=0.1)


def line(at: str, message: str, **fields: object) -> str:
    """Return a line of a log."""
    return json.dumps({"time": f"2026-01-31T12:00:{at}Z", "message": message, "fields": fields})


def test_compactions_are_read_from_the_log(tmp_path: Path) -> None:
    """Each takes from the adoption of its generation to its own line; other lines do not matter."""
    log = tmp_path / "coordinator.log"
    lines = [
        "no JSON",
        line("01.000000", "snapshot adopted", generation=1),
        line("02.000000", "snapshot adopted", generation=2),
        line("02.500000", "section compacted", stage=3, bytes=900),
        line("03.000000", "something else"),
    ]
    log.write_text("\n".join(lines) + "\n")
    assert compactions(log) == [Compaction(3, 0.5, 900)]


def test_every_target_is_judged_and_can_be_missed() -> None:
    """Figures beyond a must miss it, figures within an aim reach it: no row is always green."""
    bad: dict[str, list[Figures]] = {}
    good: dict[str, list[Figures]] = {}
    for target in SNAPSHOT_TARGETS:
        bad.setdefault(target.workload, [{}])[0] |= {target.figure: 1.01 * target.must}  # type: ignore[operator]
        good.setdefault(target.workload, [{}])[0] |= {target.figure: target.aim}  # type: ignore[operator]
    assert {row["verdict"] for row in report(bad)["targets"]} == {"missed"}
    assert {row["verdict"] for row in report(good)["targets"]} == {"aim"}


def test_etcd_sends_snapshots_in_blobs() -> None:
    """A blob is field 3, the remaining bytes are field 2; the request has no field."""
    response = etcd_client.CLASSES["SnapshotResponse"](remaining_bytes=1, blob=b"b")
    assert response.SerializeToString() == b"\x10\x01\x1a\x01b"
    assert etcd_client.SnapshotRequest().SerializeToString() == b""
    assert etcd_client.path("Snapshot", "Maintenance") == "/etcdserverpb.Maintenance/Snapshot"


def test_options_have_defaults() -> None:
    """`--quick` is shorter, and explicit options override it."""
    quick, given = parse(["--quick"]), parse(["--quick", "--rounds", "7"])
    assert (quick.rounds, given.rounds) == (1, 7)
    assert parse([]).rounds > quick.rounds
    assert tuple(parse([]).only) == PARTS
    assert parse(["--only", "light", "restart"]).only == ["light", "restart"]


def test_what_was_not_measured_is_not_judged() -> None:
    """A run of some parts has rows for these parts alone."""
    figures: dict[str, list[Figures]] = {"p99_during_light": [{"p99_ratio": 1.5}]}
    assert [row["verdict"] for row in report(figures)["targets"]] == ["must"]
