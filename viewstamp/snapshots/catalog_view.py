"""The catalog view: the snapshots that a replica knew, in one SQLite file of its data directory.

Whenever the catalog changes, the coordinator writes a new file and renames it into place. So a
reader finds a whole file, the older or the newer one, whether the replica runs or not, and needs no
write permission. No decision depends on the file, and it may be deleted: the next start writes it.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from viewstamp.api.routing.v1.routing_pb2 import Stage
from viewstamp.api.snapshots.v1.snapshots_service_pb2 import (
    RetentionClass,
    Snapshot,
    SnapshotState,
    SnapshotTask,
)
from viewstamp.snapshots.errors import BadCatalogView, NoCatalogView, NoSuchGeneration

CATALOG_VIEW_FILE: Final = "catalog.sqlite"
SCHEMA_VERSION: Final = 4
_AGAIN: Final = "start the replica, which writes it anew, or read the files with --directory"

_GENERATION: Final = (
    *("generation", "state", "cut_op", "cut_revision", "root", "created_at", "retention"),
    *("failure", "decided_at", "keep_last", "keep_daily", "kept_until", "modified_revision"),
)
_TASK: Final = ("stage", "applied_revision", "state_digest", "entities", "size_bytes")

# States, retention classes and stages are names, for readers who use SQL.
SCHEMA: Final = f"""
    PRAGMA journal_mode = OFF;
    PRAGMA synchronous = OFF;
    PRAGMA user_version = {SCHEMA_VERSION};
    BEGIN;
    CREATE TABLE view (op INTEGER NOT NULL, revision INTEGER NOT NULL, written_at INTEGER NOT NULL);
    CREATE TABLE generations (
        generation INTEGER PRIMARY KEY, state TEXT NOT NULL, cut_op INTEGER NOT NULL,
        cut_revision INTEGER NOT NULL, root BLOB NOT NULL, created_at INTEGER NOT NULL,
        retention TEXT NOT NULL, failure TEXT NOT NULL, decided_at INTEGER NOT NULL,
        keep_last INTEGER NOT NULL, keep_daily INTEGER NOT NULL,
        kept_until INTEGER NOT NULL, modified_revision INTEGER NOT NULL
    );
    CREATE TABLE tasks (
        generation INTEGER NOT NULL, stage TEXT NOT NULL, applied_revision INTEGER NOT NULL,
        state_digest BLOB NOT NULL, entities INTEGER NOT NULL, size_bytes INTEGER NOT NULL
    );
    CREATE TABLE copies (generation INTEGER NOT NULL, directory TEXT NOT NULL);
"""
_ENUMS: Final[Mapping[str, tuple[Any, str]]] = {
    "state": (SnapshotState, "SNAPSHOT_STATE_"),
    "retention": (RetentionClass, "RETENTION_CLASS_"),
    "stage": (Stage, "STAGE_"),
}


@dataclass(frozen=True, slots=True)
class CatalogView:
    """What a replica knew at an op and its revision, written at `written_at` (us since 1970).

    `snapshots` are newest first; `copies` names the directories with a verified copy of a
    generation.
    """

    op: int
    revision: int
    written_at: int
    snapshots: Sequence[Snapshot] = ()
    copies: Mapping[int, Sequence[str]] = field(default_factory=dict)

    def snapshot(self, generation: int) -> Snapshot:
        """Return a generation; 0 stands for the newest completed one. Raises NoSuchGeneration."""
        for snapshot in self.snapshots:
            is_latest = not generation and snapshot.state == SnapshotState.SNAPSHOT_STATE_COMPLETED
            if is_latest or snapshot.generation == generation:
                return snapshot
        there = ", ".join(str(each.generation) for each in self.snapshots) or "none"
        name = f"snapshot {generation}" if generation else "completed snapshot"
        raise NoSuchGeneration(
            f"the catalog view of op {self.op} has no {name}; there: {there}",
            "see `viewstamp snapshot list`",
        )


def inserts(view: CatalogView) -> Iterable[tuple[str, list[Sequence[Any]]]]:
    """Yield each statement that fills a table, with its rows."""
    yield _insert("view", 3), [(view.op, view.revision, view.written_at)]
    yield _insert("generations", len(_GENERATION)), [_row(s, _GENERATION) for s in view.snapshots]
    tasks = [(s.generation, *_row(task, _TASK)) for s in view.snapshots for task in s.tasks]
    yield _insert("tasks", 1 + len(_TASK)), list(tasks)
    held = [(generation, each) for generation, paths in view.copies.items() for each in paths]
    yield _insert("copies", 2), list(held)


def read(directory: Path) -> CatalogView:
    """Return the view of a data directory. Raises NoCatalogView, BadCatalogView."""
    path = directory / CATALOG_VIEW_FILE
    if not path.is_file():
        raise NoCatalogView(f"there is no catalog view {path}", _AGAIN)
    # The file never changes in place, so SQLite needs no lock, and looks for no log beside it.
    address = f"{path.resolve().as_uri()}?mode=ro&immutable=1"
    try:
        with closing(sqlite3.connect(address, uri=True)) as connection:
            return _read(connection)
    except (sqlite3.Error, ValueError, TypeError) as error:
        raise BadCatalogView(f"the catalog view {path} cannot be read: {error}", _AGAIN) from error


def _read(connection: sqlite3.Connection) -> CatalogView:
    (version,) = connection.execute("PRAGMA user_version").fetchone()
    if version != SCHEMA_VERSION:
        raise ValueError(f"its version is {version}, and this build reads {SCHEMA_VERSION}")
    found = [fault for (fault,) in connection.execute("PRAGMA quick_check") if fault != "ok"]
    if found:
        raise ValueError("; ".join(found))
    tasks: dict[int, list[SnapshotTask]] = {}
    for generation, *row in connection.execute(_select("tasks", ("generation", *_TASK))):
        tasks.setdefault(generation, []).append(SnapshotTask(**_fields(_TASK, row)))
    copies: dict[int, list[str]] = {}
    for generation, each in connection.execute("SELECT generation, directory FROM copies"):
        copies.setdefault(generation, []).append(each)
    rows = connection.execute(_select("generations", _GENERATION) + " ORDER BY generation DESC")
    snapshots = [Snapshot(**_fields(_GENERATION, row), tasks=tasks.get(row[0], ())) for row in rows]
    ((op, revision, written_at),) = connection.execute("SELECT op, revision, written_at FROM view")
    return CatalogView(op, revision, written_at, snapshots, copies)


def _row(message: Snapshot | SnapshotTask, names: Sequence[str]) -> list[Any]:
    return [_stored(name, getattr(message, name)) for name in names]


def _stored(name: str, value: Any) -> Any:
    if name not in _ENUMS:
        return value
    enum, prefix = _ENUMS[name]
    return enum.Name(value).removeprefix(prefix).lower()


def _fields(names: Sequence[str], row: Sequence[Any]) -> dict[str, Any]:
    return {name: _loaded(name, value) for name, value in zip(names, row, strict=True)}


def _loaded(name: str, value: Any) -> Any:
    if name not in _ENUMS:
        return value
    enum, prefix = _ENUMS[name]
    return enum.Value(prefix + value.upper())


def _insert(table: str, columns: int) -> str:
    return f"INSERT INTO {table} VALUES ({', '.join('?' * columns)})"


def _select(table: str, columns: Sequence[str]) -> str:
    return f"SELECT {', '.join(columns)} FROM {table}"
