"""The catalog view in SQLite: it is rebuilt from the catalog, and never blocks anybody."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from coordinator.mux.catalog_types import RetentionClass, Snapshot, SnapshotState
from coordinator.mux.stage import Stage
from coordinator.snapshot import store as store_module
from coordinator.snapshot.store import CatalogViewWriter, rebuild, view_of
from coordinator.stages.entities import snapshot_of
from tests.coordinator.snapshot.orchestration.orchestra import tasks
from viewstamp.snapshots.catalog_view import CATALOG_VIEW_FILE, CatalogView, read
from viewstamp.snapshots.errors import BadCatalogView


class Watched:
    """A writer over a catalog that tests change; it remembers when it was stale."""

    def __init__(self, directory: Path, *snapshots: Snapshot) -> None:
        """Begin without alarms."""
        self.heard: list[str] = []
        self.snapshots: Sequence[Snapshot] = snapshots
        self.stale, self.current_again = asyncio.Event(), asyncio.Event()
        path = directory / CATALOG_VIEW_FILE
        self.writer = CatalogViewWriter(path, self._view, self._stale, self._current)

    def _view(self) -> CatalogView:
        return _view(*self.snapshots)

    def _stale(self, why: str) -> None:
        self.heard.append(why)
        self.stale.set()

    def _current(self) -> None:
        self.heard.append("current")
        self.current_again.set()


def _snapshot(generation: int, state: SnapshotState = SnapshotState.COMPLETED) -> Snapshot:
    return Snapshot(generation, state, cut_op=generation, tasks=tasks(Stage.USERS))


def _view(*snapshots: Snapshot) -> CatalogView:
    return view_of((7, 5), snapshots, lambda _: (), {1: ("/b", "/a"), 9: ("/gone",)})


def _read(directory: Path) -> list[Snapshot]:
    return [snapshot_of(each) for each in read(directory).snapshots]


ONE, TWO, THREE = map(_snapshot, (1, 2, 3))


async def test_replaced_whole(tmp_path: Path) -> None:
    """A rebuild replaces all old content; only copies that exist are in the view."""
    path = tmp_path / CATALOG_VIEW_FILE
    await rebuild(path, _view(ONE, TWO))
    assert _read(tmp_path) == [TWO, ONE]
    assert dict(read(tmp_path).copies) == {1: ["/b", "/a"]}
    await rebuild(path, _view(THREE, TWO))
    view = read(tmp_path)
    assert (_read(tmp_path), dict(view.copies)) == ([THREE, TWO], {})
    assert (view.op, view.revision) == (7, 5)
    assert view.written_at > 0
    assert [each.name for each in tmp_path.iterdir()] == [CATALOG_VIEW_FILE]


async def test_error_in_the_middle_leaves_the_older_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A reader never sees a write that fails half-way; the next write makes up for it."""
    watched = Watched(tmp_path, ONE)
    await watched.writer.settle()
    watched.snapshots = (ONE, TWO)
    wrong = [
        ("INSERT INTO copies VALUES (1, '/a')", [()]),
        ("INSERT INTO nowhere VALUES (1)", [()]),
    ]
    monkeypatch.setattr(store_module, "inserts", lambda _: wrong)
    await watched.writer.settle()
    assert watched.writer.is_stale
    assert "no such table: nowhere" in watched.heard[0]
    assert _read(tmp_path) == [ONE]
    monkeypatch.undo()
    await watched.writer.settle()
    assert (_read(tmp_path), watched.heard[1:]) == ([TWO, ONE], ["current"])


@pytest.mark.parametrize("held", [b"no database at all" * 1000, b""])
async def test_damaged_file(tmp_path: Path, held: bytes) -> None:
    """The reader refuses a file that is not a view, and the next write replaces it."""
    (tmp_path / CATALOG_VIEW_FILE).write_bytes(held)
    with pytest.raises(BadCatalogView) as refused:
        read(tmp_path)
    assert "start the replica" in refused.value.next_step
    watched = Watched(tmp_path, ONE)
    await watched.writer.settle()
    assert (_read(tmp_path), watched.heard) == ([ONE], [])


async def test_file_of_an_older_build(tmp_path: Path) -> None:
    """The log that an older build left beside its file does not enter the new one."""
    path = tmp_path / CATALOG_VIEW_FILE
    old = sqlite3.connect(path)
    old.execute("PRAGMA journal_mode = WAL")
    old.execute("CREATE TABLE generations (generation INTEGER PRIMARY KEY)")
    old.commit()
    with pytest.raises(BadCatalogView, match="its version is 0"):
        read(tmp_path)
    await rebuild(path, _view(ONE))
    assert [each.name for each in tmp_path.iterdir()] == [CATALOG_VIEW_FILE]
    old.close()
    assert _read(tmp_path) == [ONE]


async def test_tables_for_people(tmp_path: Path) -> None:
    """A reader with SQL finds states, retention classes and stages by name."""
    path = tmp_path / CATALOG_VIEW_FILE
    await rebuild(path, _view(replace(ONE, retention=RetentionClass.PINNED)))
    with sqlite3.connect(path) as connection:
        rows = connection.execute(
            "SELECT generation, state, retention, stage FROM generations"
            " JOIN tasks USING (generation)"
        ).fetchall()
    connection.close()
    assert rows == [(1, "completed", "pinned", "users")]


async def test_task_writes_what_comes(tmp_path: Path) -> None:
    """The task writes unasked, and retries a stale view by itself."""
    directory = tmp_path / "view"
    watched = Watched(directory, ONE)
    running = asyncio.ensure_future(watched.writer.run())
    await watched.stale.wait()
    assert "cannot be written" in watched.heard[0]
    directory.mkdir()
    watched.snapshots = (ONE, TWO)
    watched.writer.changed()
    await watched.current_again.wait()
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    assert _read(directory) == [TWO, ONE]
