"""What proves to be committed is committed, on random histories of views."""

from __future__ import annotations

from random import Random

from hypothesis import given
from hypothesis import strategies as st

from testkit.journal_builders import chain
from viewstamp.archive.committed_chain import CommittedChain, CommittedHead, EntryPlace
from viewstamp.format.prepare import SealedPrepare

VIEWS = 6


def place(entry: SealedPrepare) -> EntryPlace:
    """Return an entry as a journal has it."""
    return EntryPlace(entry.op, entry.checksum, entry.parent, entry.commit, 100, 1, 4096, 4096)


def history(random: Random) -> tuple[list[SealedPrepare], list[SealedPrepare], int]:
    """Return the log in the end, all entries that were ever written, and what is committed."""
    log: list[SealedPrepare] = []
    written: list[SealedPrepare] = []
    committed = 0
    for view in range(1, VIEWS):
        # A new view keeps all that is committed, and discards what it likes of the rest.
        del log[random.randint(committed, len(log)) :]
        for _ in range(random.randint(0, 4)):
            (entry,) = chain(1, after=log[-1] if log else None, commit=committed, view=view)
            log.append(entry)
            written.append(entry)
            if random.random() < 0.6:
                committed = random.randint(committed, len(log))
    return log, written, committed


@given(st.integers(0, 10_000))
def test_only_what_is_committed_is_proved(seed: int) -> None:
    """Whatever entries a journal has, and in whatever order, no discarded one is proved."""
    random = Random(seed)
    log, written, committed = history(random)
    found = CommittedChain()
    shipped: list[bytes] = []
    for entry in random.sample(written, len(written)):
        if random.random() < 0.9:
            found.add(place(entry))
        proved = found.proved()
        if proved.entries and proved.hole is None and random.random() < 0.5:
            last = proved.entries[-1]
            shipped += [each.checksum for each in proved.entries]
            found.ship(CommittedHead(last.op, last.checksum))
    for checksum in [*shipped, *(each.checksum for each in found.proved().entries)]:
        assert checksum in [entry.checksum for entry in log[:committed]]
    assert shipped == [entry.checksum for entry in log[: len(shipped)]]


def test_entries_before_a_hole_come_first() -> None:
    """Of a journal with holes the oldest entries are proved first, so that none is passed over."""
    entries: list[SealedPrepare] = []
    for op in range(1, 13):
        entries += chain(1, after=entries[-1] if entries else None, commit=op - 1)
    found = CommittedChain()
    for entry in entries:
        if entry.op not in (5, 9):
            found.add(place(entry))
    assert [each.op for each in found.proved().entries] == [1, 2, 3]
    found.ship(CommittedHead(3, entries[2].checksum))
    proved = found.proved()
    assert ([each.op for each in proved.entries], proved.hole) == ([6, 7], 5)
    assert found.only_at(7) == CommittedHead(7, entries[6].checksum)
    assert found.only_at(5) is None
