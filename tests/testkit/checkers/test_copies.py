"""Copies of entries that the checkers count, on disks that are there and on lost ones."""

from __future__ import annotations

from testkit.checkers.history import History

ENTRY = b"e" * 16


def test_a_lost_copy_counts_in_the_views_that_its_replica_reached() -> None:
    """Nobody can have an acknowledgement of a later view from a disk that was gone by then."""
    history = History(3, lambda op: 0)
    history.held = {0: {4: ENTRY}, 1: {4: ENTRY}}
    history.views = {0: 2, 1: 2}
    assert history.copies(4, ENTRY, view=3) == 2
    history.disk_lost(1)
    assert [history.copies(4, ENTRY, view=view) for view in (1, 2, 3)] == [2, 2, 1]


def test_a_disk_that_is_lost_again_in_an_earlier_view_takes_nothing_back() -> None:
    """The copy counts up to the latest view in which it was there."""
    history = History(3, lambda op: 0)
    for view in (5, 1):
        history.held, history.views = {1: {4: ENTRY}}, {1: view}
        history.disk_lost(1)
    assert [history.copies(4, ENTRY, view=view) for view in (5, 6)] == [1, 0]
