"""Merging: a chain of layers equals a dictionary to which the layers were written."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from viewstamp.format import FormatError
from viewstamp.format.merge import merge
from viewstamp.format.section import SectionEntry

POSITIONS = st.tuples(st.integers(0, 3), st.binary(max_size=2))
LAYERS = st.dictionaries(POSITIONS, st.none() | st.binary(max_size=2), max_size=8).map(
    lambda layer: [SectionEntry(*here, layer[here]) for here in sorted(layer)]
)


def model(layers: list[list[SectionEntry]]) -> dict[tuple[int, bytes], bytes | None]:
    """The last word of each entity, tombstones included, ascending."""
    said = {entry[:2]: entry.canonical for layer in layers for entry in layer}
    return dict(sorted(said.items()))


@given(st.lists(LAYERS, max_size=5))
def test_merge_is_what_a_dictionary_says(layers: list[list[SectionEntry]]) -> None:
    """The last layer wins, ascending, and tombstones are dropped only when asked to."""
    said = [SectionEntry(*here, canonical) for here, canonical in model(layers).items()]

    assert list(merge(layers, keep_tombstones=True)) == said
    assert list(merge(layers, keep_tombstones=False)) == [
        entry for entry in said if entry.canonical is not None
    ]


@given(st.lists(LAYERS, max_size=5), st.integers(0, 5))
def test_merging_deltas_first_changes_nothing(layers: list[list[SectionEntry]], count: int) -> None:
    """Deltas merged into one, tombstones kept, have the same effect as one by one."""
    folded = [*layers[:count], list(merge(layers[count:], keep_tombstones=True))]

    assert list(merge(folded, keep_tombstones=False)) == list(merge(layers, keep_tombstones=False))


@pytest.mark.parametrize(
    "layer",
    [
        [SectionEntry(1, b"b", b""), SectionEntry(1, b"a", b"")],
        [SectionEntry(1, b"a", b""), SectionEntry(1, b"a", None)],
        [SectionEntry(2, b"", b""), SectionEntry(1, b"z", b"")],
    ],
)
def test_layers_out_of_order_are_refused(layer: list[SectionEntry]) -> None:
    """An entry that is not behind the one before it ends the merge, naming the layer."""
    with pytest.raises(FormatError, match=r"layer 1: entry .* does not come after"):
        list(merge([[SectionEntry(1, b"a", b"")], layer], keep_tombstones=False))
