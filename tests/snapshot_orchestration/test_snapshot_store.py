"""The view in SQLite: in order, isolated, and never in anybody's way."""

from __future__ import annotations

import asyncio
import sqlite3
from dataclasses import replace
from pathlib import Path

import pytest

from coordinator.mux.catalog_types import Retention, Snapshot, SnapshotState
from coordinator.mux.stage import Stage
from coordinator.snapshot import schema, values
from coordinator.snapshot import store as store_module
from coordinator.snapshot.store import SnapshotStore, UpdateContended
from tests.snapshot_orchestration.orchestra import tasks


class Watched(SnapshotStore):
    """A store that remembers when it was stale."""

    def __init__(self, path: Path) -> None:
        """Begin without alarms."""
        self.heard: list[str] = []
        self.stale, self.current_again = asyncio.Event(), asyncio.Event()
        super().__init__(path, self._heard_stale, self._heard_current)

    def _heard_stale(self, why: str) -> None:
        self.heard.append(why)
        self.stale.set()

    def _heard_current(self) -> None:
        self.heard.append("current")
        self.current_again.set()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Where the view is, in a directory that is not there yet if the test removes it."""
    return tmp_path / "view" / "catalog.sqlite"


def _snapshot(generation: int, state: SnapshotState = SnapshotState.COMPLETED) -> Snapshot:
    return Snapshot(generation, state, cut_op=generation, tasks=tasks(Stage.USERS))


ONE, TWO, THREE = map(_snapshot, (1, 2, 3))


async def test_written_in_order(path: Path) -> None:
    """What retirement gives is in the view in its order: the last state, without the deleted."""
    path.parent.mkdir()
    store = Watched(path)
    store.rebuild((ONE,))
    store.apply((replace(TWO, state=SnapshotState.CREATED, tasks=()),), ())
    store.copied(1, ("/a", "/b", "/c"))
    store.apply((TWO,), ())
    store.copied(2, ("/b", "/a"))
    store.apply((THREE,), (1,))
    assert await store.current(wait=True) == THREE
    assert await store.list_snapshots() == [THREE, TWO]
    assert (await store.copies(1), await store.copies(2)) == ((), ("/b", "/a"))
    assert (store.heard, await store.get(1)) == ([], None)
    await store.close()


async def test_pages_and_latest(path: Path) -> None:
    """Lists go from the newest down; the latest completed one may be older."""
    path.parent.mkdir()
    store = Watched(path)
    store.rebuild((ONE, TWO, THREE, _snapshot(9, SnapshotState.FAILED)))
    await store.settle()
    assert [s.generation for s in await store.list_snapshots(limit=2)] == [9, 3]
    assert [s.generation for s in await store.list_snapshots(before=3, limit=2)] == [2, 1]
    assert await store.latest_completed() == THREE
    assert await store.lookup_generation(Stage.CATALOG) == 9
    await store.close()


async def test_rebuild_forgets_everything_else(path: Path) -> None:
    """Whatever the file held, after a rebuild it holds what the catalog machine has."""
    path.parent.mkdir()
    before = Watched(path)
    before.rebuild((ONE, TWO))
    before.copied(1, ("/a",))
    await before.close()
    after = Watched(path)
    assert await after.list_snapshots() == [TWO, ONE]
    after.rebuild((TWO, THREE))
    await after.settle()
    assert await after.list_snapshots() == [THREE, TWO]
    await after.close()


async def test_failing_disk_marks_it_stale(path: Path) -> None:
    """Nobody waits for a view that cannot be written, and later it catches up with everything."""
    store = Watched(path)  # its directory is not there
    store.rebuild((ONE,))
    await store.settle()
    store.apply((TWO,), ())
    store.copied(2, ("/a",))
    await store.settle()
    assert store.is_stale
    assert len(store.heard) == 1
    assert "cannot be written" in store.heard[0]
    path.parent.mkdir()
    store.apply((THREE,), (1,))
    await store.settle()
    assert (store.is_stale, store.heard[1:]) == (False, ["current"])
    assert await store.list_snapshots() == [THREE, TWO]
    assert await store.copies(2) == ("/a",)
    await store.close()


async def test_error_in_the_middle_leaves_nothing(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A write that fails half-way is rolled back whole, and made up for by the next one."""
    path.parent.mkdir()
    store = Watched(path)
    store.rebuild((ONE,))
    await store.settle()
    works = schema.put

    async def failing(connection: object, snapshot: Snapshot) -> None:
        if snapshot.generation == 3:
            raise sqlite3.OperationalError("disk I/O error")
        await works(connection, snapshot)  # type: ignore[arg-type]

    monkeypatch.setattr(schema, "put", failing)
    store.apply((TWO, THREE), ())
    await store.settle()
    assert "disk I/O error" in store.heard[0]
    assert await store.list_snapshots() == [ONE]
    monkeypatch.undo()
    await store.settle()
    assert await store.list_snapshots() == [THREE, TWO, ONE]
    await store.close()


async def test_damaged_file_is_made_anew(path: Path) -> None:
    """A file that is no database is replaced: nothing in it is needed."""
    path.parent.mkdir()
    path.write_bytes(b"no database at all" * 1000)
    store = Watched(path)
    store.rebuild((ONE,))
    await store.settle()
    assert store.is_stale
    await store.settle()
    assert (store.is_stale, await store.current()) == (False, ONE)
    await store.close()


async def test_damaged_later(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A view that is found damaged while it is in use is made anew with all that was in it."""
    path.parent.mkdir()
    store = Watched(path)
    store.rebuild((ONE,))
    store.copied(1, ("/a",))
    await store.settle()

    async def damaged(*_: object) -> None:
        error = sqlite3.DatabaseError("database disk image is malformed")
        error.sqlite_errorcode = sqlite3.SQLITE_CORRUPT
        raise error

    monkeypatch.setattr(schema, "put", damaged)
    store.apply((TWO,), ())
    await store.settle()
    assert not path.exists()
    monkeypatch.undo()
    await store.settle()
    assert await store.list_snapshots() == [TWO, ONE]
    assert (await store.copies(1), store.is_stale) == (("/a",), False)
    await store.close()


async def test_other_version_is_made_anew(path: Path) -> None:
    """A file of another schema version, older or newer, is emptied."""
    path.parent.mkdir()
    for version in (0, schema.SCHEMA_VERSION + 1):
        store = Watched(path)
        store.rebuild((ONE,))
        await store.close()
        with sqlite3.connect(path) as connection:
            connection.execute(f"PRAGMA user_version = {version}")
        connection.close()
        again = Watched(path)
        assert await again.list_snapshots() == []
        await again.close()


async def test_tables_for_people(path: Path) -> None:
    """Whoever looks with SQL finds states, retention classes and stages by name."""
    path.parent.mkdir()
    store = Watched(path)
    store.rebuild((replace(ONE, retention=Retention.PINNED),))
    await store.close()
    with sqlite3.connect(path) as connection:
        rows = connection.execute(
            "SELECT generation, states.name, retention_classes.name, stages.name FROM generations"
            " JOIN states USING (state) JOIN retention_classes USING (retention)"
            " JOIN tasks USING (generation) JOIN stages USING (stage)"
        ).fetchall()
    connection.close()
    assert rows == [(1, "completed", "pinned", "users")]


async def test_concurrent_updates_lose_nothing(path: Path) -> None:
    """Updates of several stores on one file are isolated: each sees what the one before wrote."""
    path.parent.mkdir()
    stores = [Watched(path) for _ in range(3)]
    await stores[0].update(lambda current: values.next_snapshot(current, 0, Retention.LAST))

    async def count(store: SnapshotStore) -> None:
        for _ in range(20):
            await store.update(lambda current: replace(current, keep_last=current.keep_last + 1))

    await asyncio.gather(*map(count, stores))
    assert (await stores[0].current()).keep_last == 60
    for store in stores:
        await store.close()


async def test_overtaken_update_begins_anew(path: Path) -> None:
    """An update whose ground has changed is computed again from what is there now."""
    path.parent.mkdir()
    store = Watched(path)
    await store.update(lambda _: ONE)
    seen: list[int] = []

    def overtaken(current: Snapshot) -> Snapshot:
        seen.append(current.keep_last)
        if len(seen) == 1:
            with sqlite3.connect(path) as connection:
                connection.execute("UPDATE view SET change_number = change_number + 1")
                connection.execute("UPDATE generations SET keep_last = 7")
            connection.close()
        return replace(current, keep_last=current.keep_last + 1)

    assert (await store.update(overtaken)).keep_last == 8
    assert seen == [0, 7]
    await store.close()


async def test_contended_update_gives_up(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An update that is overtaken at every attempt says so."""
    path.parent.mkdir()
    store = Watched(path)
    monkeypatch.setattr(store_module, "UPDATE_ATTEMPTS_MAX", 3)
    attempts: list[int] = []

    def overtaken(current: Snapshot) -> Snapshot:
        attempts.append(1)
        with sqlite3.connect(path) as connection:
            connection.execute("UPDATE view SET change_number = change_number + 1")
        connection.close()
        return ONE

    with pytest.raises(UpdateContended, match="3 attempts"):
        await store.update(overtaken)
    assert len(attempts) == 3
    await store.close()


async def test_update_that_raises_writes_nothing(path: Path) -> None:
    """What the function raises is raised, and the view stays as it was."""
    path.parent.mkdir()
    store = Watched(path)
    await store.update(lambda _: ONE)

    def refusing(current: Snapshot) -> Snapshot:
        raise values.AlreadyDecided("no")

    with pytest.raises(values.AlreadyDecided):
        await store.update(refusing)
    assert await store.list_snapshots() == [ONE]
    await store.close()


async def test_task_writes_what_comes(path: Path) -> None:
    """The queue task writes without being asked, and tries a stale view again by itself."""
    store = Watched(path)
    running = asyncio.ensure_future(store.run())
    store.rebuild((ONE,))
    await store.stale.wait()
    path.parent.mkdir()
    store.apply((TWO,), ())
    await store.current_again.wait()
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    assert await store.list_snapshots() == [TWO, ONE]
    await store.close()
