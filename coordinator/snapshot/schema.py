"""The tables of the catalog view, and the statements on them.

Version 1. A file of another version is emptied and made anew: it is a view, and is rebuilt at every
start. States and retention classes have tables of their own for those who look with SQL.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import aiosqlite

from coordinator.mux.catalog_types import Retention, Snapshot, SnapshotState, TaskSnapshot
from coordinator.mux.stage import Stage
from coordinator.snapshot import values

SCHEMA_VERSION: Final = 1

# Children first, the order in which they can be dropped.
_TABLES: Final = ("copies", "tasks", "generations", "states", "retention_classes", "stages", "view")

_CREATE: Final = (
    "CREATE TABLE view (one INTEGER PRIMARY KEY CHECK (one = 1), change_number INTEGER NOT NULL)",
    "CREATE TABLE states (state INTEGER PRIMARY KEY, name TEXT NOT NULL)",
    "CREATE TABLE retention_classes (retention INTEGER PRIMARY KEY, name TEXT NOT NULL)",
    "CREATE TABLE stages (stage INTEGER PRIMARY KEY, name TEXT NOT NULL)",
    """
    CREATE TABLE generations (
        generation INTEGER PRIMARY KEY,
        state INTEGER NOT NULL REFERENCES states,
        cut_op INTEGER NOT NULL,
        cut_revision INTEGER NOT NULL,
        root BLOB NOT NULL,
        created_at INTEGER NOT NULL,
        retention INTEGER NOT NULL REFERENCES retention_classes,
        failure TEXT NOT NULL,
        decided_at INTEGER NOT NULL,
        keep_last INTEGER NOT NULL,
        keep_daily INTEGER NOT NULL
    )
    """,
    """
    CREATE TABLE tasks (
        generation INTEGER NOT NULL REFERENCES generations ON DELETE CASCADE,
        stage INTEGER NOT NULL REFERENCES stages,
        applied_revision INTEGER NOT NULL,
        state_digest BLOB NOT NULL,
        entities INTEGER NOT NULL,
        size_bytes INTEGER NOT NULL,
        PRIMARY KEY (generation, stage)
    ) WITHOUT ROWID
    """,
    """
    CREATE TABLE copies (
        generation INTEGER NOT NULL REFERENCES generations ON DELETE CASCADE,
        place INTEGER NOT NULL,
        directory TEXT NOT NULL,
        PRIMARY KEY (generation, place)
    ) WITHOUT ROWID
    """,
)
_NAMES: Final = (("states", SnapshotState), ("retention_classes", Retention), ("stages", Stage))
_GENERATION_COLUMNS: Final = (
    "generation, state, cut_op, cut_revision, root, created_at, retention, failure, decided_at,"
    " keep_last, keep_daily"
)
_TASK_COLUMNS: Final = "stage, applied_revision, state_digest, entities, size_bytes"


async def create(connection: aiosqlite.Connection) -> None:
    """Make the tables, unless they are there in this version."""
    await connection.execute("BEGIN IMMEDIATE")
    try:
        if await _number(connection, "PRAGMA user_version") != SCHEMA_VERSION:
            await _create(connection)
    except BaseException:
        await connection.rollback()
        raise
    await connection.commit()


async def change_number(connection: aiosqlite.Connection) -> int:
    """Return the number of the last change to the view."""
    return await _number(connection, "SELECT change_number FROM view")


async def advance(connection: aiosqlite.Connection, seen: int) -> bool:
    """Count a change, unless there was one since `seen`; return whether it was counted."""
    cursor = await connection.execute(
        "UPDATE view SET change_number = change_number + 1 WHERE change_number = ?", (seen,)
    )
    return cursor.rowcount == 1


async def count_change(connection: aiosqlite.Connection) -> None:
    """Count a change, whatever came before."""
    await connection.execute("UPDATE view SET change_number = change_number + 1")


async def newest(connection: aiosqlite.Connection) -> Snapshot:
    """Return the newest generation, generation 0 before the first."""
    found = await _select(connection, "ORDER BY generation DESC LIMIT 1")
    return found[0] if found else values.initial()


async def latest_completed(connection: aiosqlite.Connection) -> Snapshot:
    """Return the newest completed generation, generation 0 before the first."""
    where = "WHERE state = ? ORDER BY generation DESC LIMIT 1"
    found = await _select(connection, where, int(SnapshotState.COMPLETED))
    return found[0] if found else values.initial()


async def page(connection: aiosqlite.Connection, before: int | None, limit: int) -> list[Snapshot]:
    """Return generations below `before` (None: all), newest first, at most `limit`."""
    if before is None:
        return await _select(connection, "ORDER BY generation DESC LIMIT ?", limit)
    where = "WHERE generation < ? ORDER BY generation DESC LIMIT ?"
    return await _select(connection, where, before, limit)


async def one(connection: aiosqlite.Connection, generation: int) -> Snapshot | None:
    """Return a generation; generation 0 is always there."""
    if generation == 0:
        return values.initial()
    found = await _select(connection, "WHERE generation = ?", generation)
    return found[0] if found else None


async def copies(connection: aiosqlite.Connection, generation: int) -> tuple[str, ...]:
    """Return the directories that hold a generation, in their order."""
    rows = await connection.execute_fetchall(
        "SELECT directory FROM copies WHERE generation = ? ORDER BY place", (generation,)
    )
    return tuple(str(row[0]) for row in rows)


async def clear(connection: aiosqlite.Connection) -> None:
    """Delete every generation."""
    await connection.execute("DELETE FROM generations")


async def put(connection: aiosqlite.Connection, snapshot: Snapshot) -> None:
    """Insert or replace a generation with its tasks; its copies stay."""
    columns = [name.strip() for name in _GENERATION_COLUMNS.split(",")]
    row = [_stored(getattr(snapshot, name)) for name in columns]
    updates = ", ".join(f"{name} = excluded.{name}" for name in columns[1:])
    await connection.execute(
        f"INSERT INTO generations ({_GENERATION_COLUMNS}) VALUES ({_places(columns)})"
        f" ON CONFLICT (generation) DO UPDATE SET {updates}",
        row,
    )
    await connection.execute("DELETE FROM tasks WHERE generation = ?", (snapshot.generation,))
    names = [name.strip() for name in _TASK_COLUMNS.split(",")]
    await connection.executemany(
        f"INSERT INTO tasks (generation, {_TASK_COLUMNS}) VALUES (?, {_places(names)})",
        [
            (snapshot.generation, *(_stored(getattr(task, name)) for name in names))
            for task in snapshot.tasks
        ],
    )


async def delete(connection: aiosqlite.Connection, generation: int) -> None:
    """Delete a generation with its tasks and copies."""
    await connection.execute("DELETE FROM generations WHERE generation = ?", (generation,))


async def put_copies(
    connection: aiosqlite.Connection, generation: int, directories: Sequence[str]
) -> None:
    """Say where the copies of a generation are; one that was deleted meanwhile has none."""
    await connection.execute("DELETE FROM copies WHERE generation = ?", (generation,))
    await connection.executemany(
        "INSERT INTO copies (generation, place, directory)"
        " SELECT generation, ?, ? FROM generations WHERE generation = ?",
        [(place, directory, generation) for place, directory in enumerate(directories)],
    )


async def _create(connection: aiosqlite.Connection) -> None:
    for table in _TABLES:
        await connection.execute(f"DROP TABLE IF EXISTS {table}")
    for statement in _CREATE:
        await connection.execute(statement)
    for table, names in _NAMES:
        await connection.executemany(
            f"INSERT INTO {table} VALUES (?, ?)",
            [(int(each), each.name.lower()) for each in names],
        )
    await connection.execute("INSERT INTO view VALUES (1, 0)")
    await connection.execute(f"PRAGMA user_version = {SCHEMA_VERSION}")


async def _select(connection: aiosqlite.Connection, where: str, *arguments: int) -> list[Snapshot]:
    rows = await connection.execute_fetchall(
        f"SELECT {_GENERATION_COLUMNS} FROM generations {where}", arguments
    )
    return [await _snapshot(connection, row) for row in rows]


async def _snapshot(connection: aiosqlite.Connection, row: Any) -> Snapshot:
    tasks = await connection.execute_fetchall(
        f"SELECT {_TASK_COLUMNS} FROM tasks WHERE generation = ? ORDER BY stage", (row[0],)
    )
    return Snapshot(
        generation=row[0],
        state=SnapshotState(row[1]),
        cut_op=row[2],
        cut_revision=row[3],
        root=row[4],
        created_at=row[5],
        retention=Retention(row[6]),
        failure=row[7],
        decided_at=row[8],
        keep_last=row[9],
        keep_daily=row[10],
        tasks=tuple(TaskSnapshot(Stage(task[0]), *task[1:]) for task in tasks),
    )


async def _number(connection: aiosqlite.Connection, statement: str) -> int:
    (row,) = await connection.execute_fetchall(statement)
    return int(row[0])


def _stored(value: int | str | bytes) -> int | str | bytes:
    return int(value) if isinstance(value, int) else value


def _places(columns: Sequence[str]) -> str:
    return ", ".join("?" * len(columns))
