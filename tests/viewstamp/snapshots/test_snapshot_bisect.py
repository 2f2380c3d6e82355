"""The first kept generation in which a condition holds: the search, and the command."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, Final

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from testkit.generators.history import StateLife, write_history
from tests.viewstamp.cli.conftest import CommandLine
from tests.viewstamp.snapshots.generations import SnapshotDirectory
from viewstamp.api.streams.v1 import streams_pb2
from viewstamp.format.manifest import manifest_name
from viewstamp.snapshots.copies import Copies, copy_directories
from viewstamp.snapshots.entities import EntitySelection, select, stage_of
from viewstamp.snapshots.explore.bisecting import BisectOutcome, bisected, kept_between
from viewstamp.snapshots.explore.expressions import read_condition
from viewstamp.snapshots.generation import Generation

GENERATIONS: Final = 9
# Nothing goes, so that what is true once stays true.
LIFE: Final = StateLife(
    generations=GENERATIONS,
    streams=3,
    topics_per_stream=3,
    groups_per_stream=2,
    users=4,
    come_percent=20,
    change_percent=20,
    go_percent=0,
)
Rows = Mapping[str, list[Any]]


def _partitions(rows: Rows) -> list[int]:
    ranges = [one for topic in rows["topics"] for one in topic.partitions]
    return [number for one in ranges for number in range(one.first, one.first + one.count)]


# What an expression means, by plain Python over all entities; {} is a number.
MEANINGS: Final[Mapping[str, Callable[[Rows, int], bool]]] = {
    "count(topic) > {}": lambda rows, n: len(rows["topics"]) > n,
    "count(topic where id >= {}) > 3": lambda rows, n: (
        sum(one.id >= n for one in rows["topics"]) > 3
    ),
    'exists(user where username == "user-{}")': lambda rows, n: any(
        one.username == f"user-{n}" for one in rows["users"]
    ),
    "exists(group where group_epoch > 0 and id >= {})": lambda rows, n: any(
        one.group_epoch and one.id >= n for one in rows["consumer_groups"]
    ),
    "count(partition) > {}00": lambda rows, n: len(_partitions(rows)) > 100 * n,
    "count(partition where id >= 1000) > {}": lambda rows, n: (
        sum(one >= 1000 for one in _partitions(rows)) > n
    ),
    "not count(stream) <= {} or count(token) > {}": lambda rows, n: (
        len(rows["streams"]) > n or len(rows["personal_access_tokens"]) > n
    ),
}


def copies_of(path: Path) -> Copies:
    """The copies of a replica."""
    return Copies(copy_directories(path))


def rows_of(copies: Copies, number: int) -> Rows:
    """All entities of a generation, by kind."""
    found: dict[str, list[Any]] = {"consumer_groups": []}
    found |= {"topics": [], "users": [], "streams": [], "personal_access_tokens": []}
    for section in ("streams", "users", "consumer_groups"):
        for one in select(Generation(copies, number), EntitySelection(stage_of(section))):
            found.setdefault(one.kind.name, []).append(one.message)
    return found


@settings(max_examples=20, deadline=None)
@given(
    seed=st.integers(0, 1 << 20),
    lost=st.sets(st.integers(1, GENERATIONS - 1), max_size=GENERATIONS - 1),
    ends=st.tuples(st.integers(0, GENERATIONS - 1), st.integers(0, GENERATIONS - 1)),
    number=st.integers(0, 60),
)
def test_search_agrees_with_a_scan(
    seed: int, lost: set[int], ends: tuple[int, int], number: int
) -> None:
    """Over any monotone history, with generations deleted, a search finds what a scan finds."""
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory, "data")
        write_history(path, LIFE, seed=seed, copies=("copy-0",))
        for one in lost:
            (path / "snapshots/copy-0/manifests" / manifest_name(one)).unlink()
        copies = copies_of(path)
        kept = copies.generations()
        first, last = sorted(kept[end % len(kept)] for end in ends)
        numbers = [one for one in kept if first <= one <= last]
        assert kept_between(copies, first, last) == numbers
        states = {one: rows_of(copies, one) for one in numbers}
        for text, meaning in MEANINGS.items():
            truth = [meaning(states[one], number) for one in numbers]
            assert truth == sorted(truth), "the history is not monotone: the test is wrong"
            condition = read_condition(text.replace("{}", str(number)))
            found = bisected(copies, numbers, condition, lambda _: lambda _: None)
            if truth[0]:
                assert found.outcome is BisectOutcome.HOLDS_AT_FIRST
            elif not truth[-1]:
                assert found.outcome is BisectOutcome.HOLDS_NOWHERE
            else:
                assert found.outcome is BisectOutcome.BEGINS
                assert found.since.generation == numbers[truth.index(True)]
                assert found.before.generation == numbers[truth.index(True) - 1]
            assert len(found.looked_at) == len(set(found.looked_at))
            assert len(found.looked_at) <= 2 + len(numbers).bit_length()


def history(path: Path, names: Iterable[str]) -> SnapshotDirectory:
    """A replica with a generation for each word, each letter of which is a topic."""
    replica = SnapshotDirectory(path / "data")
    for name in names:
        topics = [
            streams_pb2.TopicEntity(id=ord(letter), stream_id=1, name=letter) for letter in name
        ]
        replica.snapshot(topics)
    return replica


def topic(name: str) -> str:
    """The expression that a topic exists."""
    return f'exists(topic where name == "{name}")'


@pytest.mark.parametrize(
    ("expression", "options", "code", "outcome", "before", "since"),
    [
        (topic("b"), (), 0, "begins", 2, 3),
        (topic("c"), (), 0, "begins", 4, 5),
        (topic("c"), ("--from", "4", "--to", "5"), 0, "begins", 4, 5),
        (topic("b"), ("--from", "2", "--to", "0"), 0, "begins", 2, 3),
        (topic("a"), (), 1, "holds_at_first", 1, 5),
        (topic("b"), ("--from", "3"), 1, "holds_at_first", 3, 5),
        (topic("z"), (), 1, "holds_nowhere", 1, 5),
        (topic("c"), ("--to", "4"), 1, "holds_nowhere", 1, 4),
        (topic("c"), ("--from", "4", "--to", "4"), 1, "holds_nowhere", 4, 4),
        (topic("c"), ("--from", "5"), 1, "holds_at_first", 5, 5),
        (topic("x"), (), 1, "ends", 1, 5),
    ],
)
def test_outcomes(
    offline: CommandLine,
    tmp_path: Path,
    expression: str,
    options: tuple[str, ...],
    code: int,
    outcome: str,
    before: int,
    since: int,
) -> None:
    """Both ends are looked at, and each outcome has a word and an exit code."""
    history(tmp_path, ("ax", "ax", "abx", "ab", "abc"))
    data = ("--data", str(tmp_path / "data"), *options)
    said = offline("snapshot", "bisect", expression, *data, "--json")
    assert (said.code, said.data["outcome"]) == (code, outcome)
    assert said.data["before"]["generation"] == before
    assert said.data["since"]["generation"] == since
    assert said.data["since"]["cut_revision"] == 100 * since
    assert set(said.data["looked_at"]) >= {before, since}
    told = offline("snapshot", "bisect", expression, *data)
    assert told.code == code
    assert f"generation {before} (revision {before}00, 2023-11-14 22:13:20Z)" in told.out


def test_the_interval_of_revisions_is_told(offline: CommandLine, tmp_path: Path) -> None:
    """People read after which revision the condition began to hold, and at which at the latest."""
    history(tmp_path, ("a", "ab"))
    said = offline("snapshot", "bisect", topic("b"), "--data", str(tmp_path / "data"))
    assert "began to hold after revision 100, at 200 at the latest" in said.out


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (("exists(topc)",), "BAD_EXPRESSION"),
        (("exists(topic)", "--from", "7"), "NO_SUCH_GENERATION"),
        (("exists(topic)", "--to", "7"), "NO_SUCH_GENERATION"),
        (("exists(topic)", "--from", "2", "--to", "1"), "NO_SUCH_GENERATION"),
        (("exists(topic)", "--data", "nowhere"), "NO_SUCH_DIRECTORY"),
    ],
)
def test_wrong_usage(
    offline: CommandLine, tmp_path: Path, arguments: tuple[str, ...], reason: str
) -> None:
    """A wrong expression, generation or directory exits with 2 and its reason."""
    history(tmp_path, ("a", "ab"))
    data = ("--data", str(tmp_path / "data"))
    said = offline("snapshot", "bisect", *data, *arguments, "--json")
    assert (said.code, said.error["reason"]) == (2, reason)


def test_people_see_the_place(offline: CommandLine, tmp_path: Path) -> None:
    """A wrong expression is shown with a mark below the place at which it is wrong."""
    history(tmp_path, ("a",))
    said = offline("snapshot", "bisect", "exists(topc)", "--data", str(tmp_path / "data"))
    assert said.err.startswith("  exists(topc)\n         ^\nerror: BAD_EXPRESSION: ")


def test_damage_is_no_answer(offline: CommandLine, tmp_path: Path) -> None:
    """A generation without a good layer exits with 1 and its reason, and with no outcome."""
    replica = history(tmp_path, ("a", "ab"))
    for copy in replica.copies:
        for layer in (copy / "layers").iterdir():
            layer.write_bytes(b"")
    said = offline("snapshot", "bisect", topic("b"), "--data", str(replica.path), "--json")
    assert (said.code, said.out, said.error["reason"]) == (1, "", "ALL_COPIES_BAD")
