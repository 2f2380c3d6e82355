"""Where a revision is built from, and which ones cannot be built any more."""

from __future__ import annotations

import pytest

from coordinator.history.bases import PastBases
from coordinator.mux.catalog_types import Snapshot, SnapshotState

COMPLETED, FAILED = SnapshotState.COMPLETED, SnapshotState.FAILED
SNAPSHOTS = (
    Snapshot(4, COMPLETED, cut_op=40, cut_revision=400),
    Snapshot(3, FAILED, cut_op=30, cut_revision=300),
    Snapshot(2, COMPLETED, cut_op=20, cut_revision=200),
    Snapshot(1, COMPLETED, cut_op=10, cut_revision=100),
)


@pytest.mark.parametrize(
    ("stored", "first_op", "revision", "generation"),
    [
        # The whole log is here: the newest snapshot before the revision, or the beginning.
        ({1, 2, 3, 4}, 1, 450, 4),
        ({1, 2, 3, 4}, 1, 400, 4),
        ({1, 2, 3, 4}, 1, 399, 2),
        ({1, 2, 3, 4}, 1, 99, 0),
        # Files that are not here are left out.
        ({1, 2}, 1, 450, 2),
        (set(), 1, 450, 0),
        # Part of the log is here.
        ({1, 2, 4}, 21, 399, 2),
        ({1, 2, 4}, 21, 200, 2),
        ({1, 2, 4}, 21, 199, None),
        ({1, 2, 4}, 22, 399, None),
        # Nothing follows a snapshot whose log is gone, but it can be read itself.
        ({1, 2, 4}, 41, 100, 1),
        ({1, 2, 4}, 41, 101, None),
        ({1, 2, 4}, 41, 401, 4),
    ],
)
def test_where_a_revision_is_built_from(
    stored: set[int], first_op: int, revision: int, generation: int | None
) -> None:
    """The newest snapshot here from which the log leads to the revision; None if there is none."""
    base = PastBases(SNAPSHOTS, stored, first_op).best_for(revision)
    assert (None if base is None else base.generation) == generation


@pytest.mark.parametrize(
    ("stored", "first_op", "oldest"),
    [({1, 2, 4}, 1, 0), ({1, 2, 4}, 11, 100), ({1, 2, 4}, 12, 200), ({4}, 12, 400), ({4}, 42, 400)],
)
def test_the_oldest_revision(stored: set[int], first_op: int, oldest: int) -> None:
    """From the oldest revision on all can be built."""
    assert PastBases(SNAPSHOTS, stored, first_op).oldest_revision == oldest
