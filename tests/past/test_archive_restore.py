"""Restores from an archive: drills with what is missing, interrupted anywhere, and to an end."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any, Final

import pytest

from coordinator.replica.data_directory import DirectoryOptions, open_replica
from past.founding.__main__ import main
from past.founding.remains import Wanted, read_remains
from past.state import PastState
from tests.past.empty_logs import empty_entries, first_entry
from tests.past.founding_questions import question
from tests.past.past_histories import CLUSTER_ID as CLUSTER_OF_HISTORIES
from tests.past.past_histories import history, sealed
from tests.past.test_restored_cluster import CLUSTER_ID, quiet, restored, state_of_history
from tests.viewstamp.archive.memory_store import MemoryStore
from tests.viewstamp.archive.shipped import (
    KEY,
    ShippedReplica,
    manifests_of,
    newest_of,
    verified,
)
from viewstamp.archive.archive_errors import (
    ArchiveError,
    OutOfArchive,
    PieceDamaged,
    PieceMissing,
    StoreUnreachable,
)
from viewstamp.archive.sealing import ArchiveKey, Sealing
from viewstamp.archive.shipper import ShipOptions, Shipper
from viewstamp.archive.staging import Staging, WantedOfArchive, plan_of
from viewstamp.format.prepare import SealedPrepare
from viewstamp.limits import MIB

PREPARES: Final = 12
BEHIND_THE_CUT: Final = 6
STEPS_MAX: Final = 60


@pytest.fixture(scope="module")
def entries() -> list[SealedPrepare]:
    """The log of a random history, from its first entry on."""
    return sealed(history(Random(11), PREPARES))


@pytest.fixture
def log_alone(entries: list[SealedPrepare], tmp_path: Path) -> MemoryStore:
    """An archive of that log, without a snapshot: a piece for each entry."""
    store = MemoryStore()
    replica = ShippedReplica(
        tmp_path / "lost",
        replica_count=1,
        cluster_id=CLUSTER_OF_HISTORIES,
        segment_bytes=4 * MIB,
        options={"piece_bytes": 1},
    )
    replica.take(entries)
    replica.change(commit_max=len(entries))
    assert replica.ship(store).archived_op == len(entries)
    return store


@pytest.fixture(scope="module")
def with_snapshot(tmp_path_factory: pytest.TempPathFactory) -> tuple[MemoryStore, PastState]:
    """An encrypted archive of a snapshot and the log behind it, and the state of both."""
    path = tmp_path_factory.mktemp("archive") / "lost"
    restored(state_of_history(6), path, 1)
    files = open_replica(DirectoryOptions(path, 0, 1, CLUSTER_ID))
    cut = files.journal.read(files.start.base_op)
    assert cut is not None
    files.journal.append(empty_entries(cut, BEHIND_THE_CUT))
    files.record_commit(cut.op + BEHIND_THE_CUT)
    files.close()
    store = MemoryStore()
    options = ShipOptions(path, piece_bytes=1)
    with Shipper(options, manifests_of(store, (KEY,)), lambda: 1, lambda: 1) as shipper:
        report = shipper.round(is_last=True)
    assert (report.archived_op, report.snapshot) == (cut.op + BEHIND_THE_CUT, 2)
    return store, read_remains(Wanted(path), quiet).state


def fetch(
    store: MemoryStore,
    directory: Path,
    wanted: WantedOfArchive | None = None,
    keys: tuple[ArchiveKey, ...] = (KEY,),
    **bounds: Any,
) -> Staging:
    """Fetch what leads to an end, and return what did it."""
    objects = manifests_of(store, keys, accept_plain=True).objects
    plan = plan_of(objects, newest_of(store, keys), wanted or WantedOfArchive())
    staging = Staging(objects, directory)
    staging.fetch(plan, quiet, **bounds)
    return staging


def state_of(directory: Path, **end: Any) -> PastState:
    """Return what a restore makes of what was fetched."""
    return read_remains(Wanted(directory, is_staged=True, **end), quiet).state


def test_a_log_alone_restores_every_revision(
    log_alone: MemoryStore, entries: list[SealedPrepare], tmp_path: Path
) -> None:
    """Each revision and each time that the archive reaches is restored, and no more is fetched."""
    for last in entries[:: len(entries) // 4]:
        for wanted, end in (
            (WantedOfArchive(to_revision=last.last_revision), {"to_revision": last.last_revision}),
            (WantedOfArchive(to_time_us=last.timestamp), {"to_time_us": last.timestamp}),
        ):
            if last.command_count:
                staging = fetch(log_alone, tmp_path / "staged", wanted, keys=())
                state = state_of(tmp_path / "staged", **end)
                assert (state.op, state.revision) == (last.op, last.last_revision)
                assert staging.files <= last.op + 1
    assert state_of(tmp_path / "staged").timestamp_us == state.timestamp_us


def test_a_cluster_is_founded_on_an_archive(
    with_snapshot: tuple[MemoryStore, PastState],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """The program makes of an encrypted archive what it would have made of the replica."""
    store, state = with_snapshot
    fetch(store, tmp_path / "staged")
    found = state_of(tmp_path / "staged")
    assert (found.op, found.revision, found.checksum) == (state.op, state.revision, state.checksum)
    asked = question(tmp_path / "staged", tmp_path / "new", is_staged=True)
    assert main([asked]) == 0
    report = json.loads(capsys.readouterr().out.splitlines()[-1])["report"]
    assert (report["log_entries"], report["unconfirmed_entries"]) == (BEHIND_THE_CUT, 0)
    assert report["is_written"] and (tmp_path / "new" / "superblock").exists()


def needed(store: MemoryStore) -> list[str]:
    """Return the objects that a restore of all needs, but the manifest."""
    first_op = newest_of(store, (KEY,)).snapshots[0].cut_op + 1
    return [
        name
        for name in store.named("")
        if not name.startswith("manifests/")
        and not (name.startswith("log/") and int(name[4:24]) < first_op)
    ]


@pytest.mark.parametrize("damage", ["missing", "short", "changed"])
def test_a_drill_with_each_piece_gone(
    with_snapshot: tuple[MemoryStore, PastState], tmp_path: Path, damage: str
) -> None:
    """Without any object that is needed a restore is refused with its name, and so says verify."""
    whole, _ = with_snapshot
    assert len(needed(whole)) > BEHIND_THE_CUT + 2
    for name in needed(whole):
        store = replace(whole, objects_by_name=dict(whole.objects_by_name))
        data, at = store.objects_by_name.pop(name)
        if damage != "missing":
            data = data[:-1] if damage == "short" else data[:-1] + bytes([data[-1] ^ 1])
            store.objects_by_name[name] = data, at
        with pytest.raises((PieceMissing, PieceDamaged), match=name.rpartition("/")[2][:60]):
            fetch(store, tmp_path / f"staged-{len(list(tmp_path.iterdir()))}")
        verdict = verified(store, (KEY,))
        assert not verdict.is_whole
        told = verdict.problems[0]
        assert name.rpartition("/")[2][:20] in told.name + told.message
        assert verdict.restorable != verified(whole, (KEY,)).restorable


def test_an_object_that_was_exchanged_is_refused(
    with_snapshot: tuple[MemoryStore, PastState], tmp_path: Path
) -> None:
    """What somebody with the key stored in place of an object is not what the manifest names."""
    whole, _ = with_snapshot
    sealing = Sealing((KEY,))
    for number, name in enumerate(needed(whole)):
        data, at = whole.objects_by_name[name]
        content = sealing.opened(data, name)
        if name.startswith("layers/"):
            content = bytes(len(content))
        other = {name: (sealing.sealed(content), at)}
        store = replace(whole, objects_by_name=whole.objects_by_name | other)
        with pytest.raises(PieceDamaged, match=f"{name[:60]}.* was changed"):
            fetch(store, tmp_path / f"staged-{number}")


@pytest.mark.long
def test_a_fetch_that_ends_anywhere_goes_on(
    with_snapshot: tuple[MemoryStore, PastState], tmp_path: Path
) -> None:
    """Wherever the store fails, the next fetch keeps what was verified, and leads to the state."""
    whole, state = with_snapshot
    kept = []
    for step in range(1, STEPS_MAX):
        store = replace(whole, calls=0, fails_at=step)
        directory = tmp_path / f"staged-{step}"
        try:
            fetch(store, directory)
        except StoreUnreachable:
            store.fails_at = 0
            kept.append(fetch(store, directory).files_kept)
    assert kept == sorted(kept) and kept[0] == 0 < kept[-1]
    assert state_of(tmp_path / f"staged-{len(kept)}").checksum == state.checksum


def test_a_fetched_file_that_rots_is_fetched_again(
    with_snapshot: tuple[MemoryStore, PastState], tmp_path: Path
) -> None:
    """Files that are there are verified, and those of another end are removed."""
    store, state = with_snapshot
    staged = tmp_path / "staged"
    files = fetch(store, staged).files
    for path in (next(iter((staged / "log").iterdir())), next(iter((staged / "layers").iterdir()))):
        path.write_bytes(path.read_bytes()[:-1])
    behind = f"{state.op + 1:020d}-{state.op + 2:020d}.piece"
    (staged / "log" / behind).write_bytes(b"of another archive")
    assert fetch(store, staged).files_kept == files - 2
    assert state_of(staged).checksum == state.checksum


def test_gaps_are_accepted_on_request(
    with_snapshot: tuple[MemoryStore, PastState], tmp_path: Path
) -> None:
    """With --accept-gaps the log ends before the missing piece, and what is lost is named."""
    whole, state = with_snapshot
    store = replace(whole, objects_by_name=dict(whole.objects_by_name))
    lost = needed(whole)[-9] if needed(whole)[-9].startswith("log/") else store.named("log/")[-3]
    del store.objects_by_name[lost]
    staging = fetch(store, tmp_path / "staged", accept_gaps=True)
    assert lost in staging.lost
    assert state_of(tmp_path / "staged").op == int(lost[4:24]) - 1 < state.op


@pytest.mark.parametrize(
    ("wanted", "bounds", "says"),
    [
        (WantedOfArchive(to_revision=1), {}, "nothing up to the end that is wanted: it begins at"),
        (
            WantedOfArchive(generation=9),
            {},
            "no snapshot 9 before the end that is wanted; there: 2",
        ),
        (WantedOfArchive(), {"bytes_max": 10}, "more than 10"),
    ],
)
def test_what_an_archive_has_not(
    with_snapshot: tuple[MemoryStore, PastState],
    tmp_path: Path,
    wanted: WantedOfArchive,
    bounds: dict[str, Any],
    says: str,
) -> None:
    """What lies before the archive, and what would fill the disk, is refused with what to do."""
    store, _ = with_snapshot
    with pytest.raises(OutOfArchive, match=says) as caught:
        fetch(store, tmp_path / "staged", wanted, **bounds)
    assert caught.value.next_step
    assert isinstance(caught.value, ArchiveError)


def test_a_snapshot_bridges_what_was_lost(tmp_path: Path) -> None:
    """Entries below a snapshot that nobody has any more are a gap, and the rest is restored."""
    path = tmp_path / "lost"
    restored(state_of_history(6), path, 1)
    files = open_replica(DirectoryOptions(path, 0, 1, CLUSTER_ID))
    cut = files.journal.read(files.start.base_op)
    assert cut is not None
    files.journal.append(empty_entries(cut, 3))
    files.record_commit(cut.op + 3)
    files.close()
    store, early = (
        MemoryStore(),
        ShippedReplica(tmp_path / "early", replica_count=1, cluster_id=CLUSTER_ID),
    )
    early.take([first_entry(CLUSTER_ID)])
    early.change(commit_max=1)
    assert early.ship(store).archived_op == 1
    with Shipper(ShipOptions(path), manifests_of(store), lambda: 1, lambda: 1) as shipper:
        shipper.round(is_last=True)
    manifest = newest_of(store)
    assert manifest.gaps == ((2, cut.op - 1),)
    verdict = verified(store)
    assert (verdict.problems, verdict.is_whole) == ([], False)
    assert verdict.restorable[-1].first_revision == cut.last_revision
    fetch(store, tmp_path / "staged", keys=())
    assert state_of(tmp_path / "staged").op == cut.op + 3
