"""Reading a chain of layers by key ranges gives the same as a plain merge of the layers."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from tempfile import TemporaryDirectory

from hypothesis import given, settings
from hypothesis import strategies as st

from analytics.snapshots import chain, copies
from analytics.snapshots.layers import KeyRange
from analytics.snapshots.source import SnapshotReader
from analytics.snapshots.views import SectionSlice, view_of
from testkit.generators.generations import SnapshotWriter
from tests.analytics.snapshot_cases import rows
from viewstamp.format.block import ENTRY_HEADER_BYTES
from viewstamp.format.section import Position, SectionEntry
from viewstamp.limits import KIB

STAGE = 3
# Two such entries fill a block, so that few entries make many blocks.
LARGE = 120 * KIB
COPY = Path("snapshots", "copy-0")

State = dict[Position, bytes]
positions = st.tuples(st.integers(1, 3), st.binary(max_size=2))
values = st.one_of(st.none(), st.just(b""), st.binary(max_size=4), st.just(b"x" * LARGE))
generations = st.lists(
    st.tuples(st.dictionaries(positions, values, max_size=12), st.booleans()),
    min_size=1,
    max_size=5,
)


def write(directory: Path, history: list[tuple[dict[Position, bytes | None], bool]]) -> list[State]:
    """Write generations, and merge the chains of some afterwards; return the state at each."""
    writer = SnapshotWriter(directory, [COPY.name])
    states, state = [], State()
    for number, (changes, compacts) in enumerate(history, 1):
        writer.snapshot({STAGE: changes}, timestamp_us=number)
        for position, value in changes.items():
            state.pop(position, None)
            if value is not None:
                state[position] = value
        states.append(dict(sorted(state.items())))
        if compacts:
            writer.compact(is_forced=True)
    return states


@given(generations, st.sampled_from([1, 200 * KIB, 10_000 * KIB]))
@settings(max_examples=30, deadline=None)
def test_ranges_merge_to_the_whole(
    history: list[tuple[dict[Position, bytes | None], bool]], range_bytes: int
) -> None:
    """For any chain and any size of a range, ranges touch and together hold the state."""
    with TemporaryDirectory() as name:
        states = write(Path(name), history)
        directories = copies.copy_directories(Path(name) / COPY)
        for generation, state in enumerate(states, 1):
            manifest = copies.decoded(copies.manifest_of(directories, generation))
            with chain.opened(directories, chain.chain_of(manifest, STAGE)) as layers:
                found = [within for within, _ in chain.ranges(layers, KeyRange(), range_bytes)]
                assert [within.start for within in found[1:]] == [one.stop for one in found[:-1]]
                assert (found[0].start, found[-1].stop) == KeyRange()
                entries = [entry for within in found for entry in chain.merged(layers, within)]
            assert entries == [SectionEntry(*position, value) for position, value in state.items()]


@given(generations, st.sampled_from([1, 10_000 * KIB]))
@settings(max_examples=30, deadline=None)
def test_changes_are_those_of_the_states(
    history: list[tuple[dict[Position, bytes | None], bool]], range_bytes: int
) -> None:
    """The changes of a delta equal the differences between the states before and after it."""
    with TemporaryDirectory() as name:
        states = write(Path(name), history)
        options = {"generation": "all", "section": "streams", "partition_bytes": str(range_bytes)}
        read = rows(Path(name) / COPY, "changes", **options)
    found: Counter[tuple[int, str]] = Counter()
    for row in read:
        for what in ("added", "changed", "removed"):
            found[row["generation"], what] += row[what]
            found[row["generation"], f"{what}_bytes"] += row[f"{what}_bytes"]
    for generation, (old, new) in enumerate(zip([{}, *states], states, strict=False), 1):
        differing = {
            "added": [key for key in new if key not in old],
            "changed": [key for key in new if key in old and old[key] != new[key]],
            "removed": [key for key in old if key not in new],
        }
        for what, keys in differing.items():
            size = sum(ENTRY_HEADER_BYTES + len(key[1]) + len(new.get(key, b"")) for key in keys)
            assert found[generation, what] == len(keys)
            assert found[generation, f"{what}_bytes"] == size


def test_whole_sections_are_compared_where_there_is_no_delta(tmp_path: Path) -> None:
    """A section that begins anew, as after a new section version, is compared with its parent."""
    writer = SnapshotWriter(tmp_path)
    writer.snapshot({STAGE: {(1, b"a"): b"1", (1, b"b"): b"1"}}, timestamp_us=1)
    writer.snapshot({STAGE: {(1, b"a"): b"2", (1, b"b"): None, (1, b"c"): b"1"}}, timestamp_us=2)
    changes_3: dict[Position, bytes | None] = {(1, b"a"): b"3", (1, b"c"): None, (1, b"d"): b"1"}
    writer.snapshot({STAGE: changes_3}, timestamp_us=3, is_rebased=True)

    def change_rows() -> list[tuple[int, ...]]:
        found = rows(tmp_path, "changes", generation="3", section="streams")
        return [(row["added"], row["changed"], row["removed"]) for row in found]

    assert change_rows() == [(0, 0, 0), (1, 1, 1)]
    for copy in copies.copy_directories(tmp_path):
        (copy / "manifests" / f"{2:020d}.manifest").unlink()
    assert change_rows() == []


def test_changes_at_the_edges_of_blocks_are_found(tmp_path: Path) -> None:
    """An entity is found in an earlier layer also where it is the first or last of a block."""
    writer = SnapshotWriter(tmp_path)
    keys = [(1, bytes([number])) for number in range(4)]
    writer.snapshot({STAGE: dict.fromkeys(keys, b"x" * LARGE)}, timestamp_us=1)
    for number, key in enumerate(keys, 2):
        writer.snapshot({STAGE: {key: b"y"}}, timestamp_us=number)
        found = rows(tmp_path, "changes", generation=str(number), section="streams")
        assert [row["changed"] for row in found] == [0, 1]
        assert not any(row["added"] for row in found)


def test_kind_selects_its_keys_alone(tmp_path: Path) -> None:
    """With a kind no partition reaches into another kind, and blocks of others are not planned."""
    large = {(kind, bytes([key])): b"x" * LARGE for kind in (1, 2, 3) for key in range(9)}
    SnapshotWriter(tmp_path).snapshot({STAGE: large}, timestamp_us=1)
    options = {"path": str(tmp_path), "kind": "topics", "partition_bytes": "1"}
    parts = SnapshotReader(view_of("entities", "topics"), options).partitions()
    slices: list[SectionSlice] = [piece for part in parts for piece in vars(part)["slices"]]
    assert 1 < len(slices) < 9
    assert slices[0].within.start == (2, b"")
    assert slices[-1].within.stop == (3, b"")
    assert sum(piece.work_bytes for piece in slices) < 12 * LARGE
