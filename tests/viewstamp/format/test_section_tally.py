"""Tallies: digest and counts follow the changes, in whatever way a state was reached."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from viewstamp.format.digest import StateDigest
from viewstamp.format.section import Change, SectionEntry, SectionTally

States = dict[tuple[int, bytes], bytes]
STATES = st.dictionaries(
    st.tuples(st.integers(1, 3), st.binary(max_size=2)), st.binary(max_size=3), max_size=8
)


def changes(old: States, new: States) -> list[Change]:
    """The changes from one state to another, unchanged entities included."""
    positions = sorted({*old, *new})
    return [(*here, old.get(here), new.get(here)) for here in positions]


def tally_of(state: States) -> SectionTally:
    """The tally of a whole state."""
    tally = SectionTally()
    for change in changes({}, state):
        tally.add(change)
    return tally


@given(STATES, STATES)
def test_tally_of_a_base_and_its_changes_is_that_of_the_new_state(old: States, new: States) -> None:
    """A base's digest and counts, plus the changes, equal those of the new state."""
    base = tally_of(old)
    tally = SectionTally(base.digest.value, base.kinds)

    entries = [tally.add(change) for change in changes(old, new)]

    assert tally.digest == tally_of(new).digest
    assert tally.kinds == tally_of(new).kinds
    assert tally.entities == len(new)
    assert [entry for entry in entries if entry] == [
        SectionEntry(kind, key, after)
        for kind, key, before, after in changes(old, new)
        if before != after
    ]


def test_digest_is_that_of_the_entities() -> None:
    """The digest is a state digest of the entities, and kinds are counted in ascending order."""
    digest = StateDigest()
    digest.add(2, b"a", b"x")
    digest.add(1, b"b", b"")

    tally = tally_of({(2, b"a"): b"x", (1, b"b"): b""})

    assert tally.digest == digest
    assert list(tally.kinds.items()) == [(1, 1), (2, 1)]


def test_equal_bytes_are_no_change() -> None:
    """An entity that changed back is not an entry, even if its bytes were made anew."""
    tally = SectionTally(7, {1: 1})
    assert tally.add((1, b"key", b"canonical", bytes(bytearray(b"canonical")))) is None
    assert (tally.digest.value, tally.kinds) == (7, {1: 1})


def test_kinds_without_entities_are_left_out() -> None:
    """A kind without entities is not counted, nor is one given as 0."""
    tally = SectionTally(0, {1: 1, 4: 0})

    assert tally.add((1, b"", b"x", None)) == SectionEntry(1, b"", None)
    assert tally.kinds == {}


def test_taking_from_nothing_is_refused() -> None:
    """A change of a base that this is not is found when its kind runs out."""
    with pytest.raises(ValueError, match="goes, but its section has none of that kind"):
        SectionTally().add((1, b"", b"x", None))


@pytest.mark.parametrize(("digest", "kinds"), [(-1, {}), (1 << 256, {}), (0, {1: -1})])
def test_impossible_bases_are_refused(digest: int, kinds: dict[int, int]) -> None:
    """A digest outside 256 bits and a negative count are refused."""
    with pytest.raises(ValueError, match=r"lies in|0 or more entities"):
        SectionTally(digest, kinds)
