"""Mending from peers: it leaves room, leaves nothing behind, and waits for no disk for ever."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path

import pytest

from coordinator.scrub.patience import PatientThread
from coordinator.scrub.ports import ScrubAlarm
from coordinator.snapshot.errors import SnapshotNoSpace, TransferFailed
from coordinator.snapshot.file_mending import MENDING_SPARE_BYTES, FileMending
from coordinator.snapshot.layout import layer_file
from testkit.generation_builders import reserves
from testkit.journal_builders import CLUSTER_ID
from tests.coordinator.scrub.scrub_trial import NEWEST
from tests.coordinator.scrub.test_scrub_exchanges import digests, stored, with_other_layers
from tests.coordinator.scrub.test_scrub_snapshots import MendingTrial
from viewstamp.worker_thread import DaemonThread


@pytest.mark.parametrize("has_layer", [True, False])
async def test_mending_waits_for_room(has_layer: bool, tmp_path: Path) -> None:
    """Without room for the journal beside it nothing is fetched, and the reserve stays."""
    if has_layer:
        mending, generation = MendingTrial(tmp_path), NEWEST
        lost = digests(stored(mending.trial, generation))[0]
    else:
        (mending, lost), generation = with_other_layers(tmp_path), 3
    trial, fetcher = mending.trial, mending.fetcher
    trial.files.rebuild_reserve(stored(trial, generation))
    before = reserves(trial.files)
    name = layer_file(lost)
    trial.rot(name)
    free_bytes = trial.storage.free_bytes("")
    trial.storage.capacity_bytes -= free_bytes - MENDING_SPARE_BYTES + 1
    with pytest.raises((SnapshotNoSpace, TransferFailed), match="free bytes"):
        await mending.mending.bring(generation, name)
    assert "layer" not in {what for what, *_ in fetcher.asked}
    assert reserves(trial.files) == before
    trial.storage.capacity_bytes += free_bytes
    await mending.mending.bring(generation, name)


def left_in(mending: MendingTrial) -> list[str]:
    """Return fetched files that lie about."""
    return [path for path in mending.trial.storage.paths() if "/mending" in path]


async def test_nothing_fetched_is_left_behind(tmp_path: Path) -> None:
    """Whatever happens to a fetch, its files go; so do those of an earlier process."""
    mending = MendingTrial(tmp_path)
    trial = mending.trial
    lost = digests(stored(trial, NEWEST))[0]
    trial.rot(layer_file(lost))
    mending.fetcher.flipped.add(lost)
    mending.fetcher.others = dict.fromkeys((1, 2), b"no manifest")
    for name in ("mending/layer.part", "mending-generation/manifest"):
        folder = f"{tmp_path}/{name.rpartition('/')[0]}"
        trial.storage.make_directory(folder)
        trial.storage.create(f"{tmp_path}/{name}").close()
    assert len(left_in(mending)) >= 2
    mending.mending.clear()
    assert not [path for path in left_in(mending) if path.endswith(("part", "manifest"))]
    with pytest.raises(TransferFailed):
        await mending.mending.bring(NEWEST, layer_file(lost))
    assert not [path for path in left_in(mending) if path.endswith(("part", "manifest"))]


async def test_files_come_from_the_members_of_the_moment(tmp_path: Path) -> None:
    """Layers and manifests are asked of those that are members now, and of no removed replica."""
    mending = MendingTrial(tmp_path)
    mending.others = (4, 2)
    for name in (layer_file(digests(stored(mending.trial, NEWEST))[0]), mending.trial.manifest()):
        mending.trial.rot(name)
    await mending.trial.passes()
    asked = {who for _, those, *_ in mending.fetcher.asked for who in those}
    assert asked == {2, 4}


async def test_a_replica_that_became_alone_asks_nobody(tmp_path: Path) -> None:
    """If all others are removed meanwhile, mending fails as with peers that have nothing."""
    mending = MendingTrial(tmp_path)
    mending.others = ()
    lost = layer_file(digests(stored(mending.trial, NEWEST))[0])
    mending.trial.rot(lost)
    with pytest.raises(TransferFailed, match="no other replica"):
        await mending.mending.bring(NEWEST, lost)
    assert mending.fetcher.asked == []


async def test_a_hang_while_mending_is_told_and_does_not_keep_the_scrubber(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A disk that hangs in the middle raises the alarm; a cancelled scrubber ends all the same."""
    monkeypatch.setattr("coordinator.scrub.patience.STALL_MS", 1)
    mending = MendingTrial(tmp_path)
    trial = mending.trial
    thread = DaemonThread("scrub-trial")
    goes_on = threading.Event()
    mending.mending = FileMending(
        trial.files,
        mending.fetcher,
        lambda: (1, 2),
        CLUSTER_ID,
        lambda: NEWEST,
        lambda generation: asyncio.sleep(0),
        tmp_path / "mending",
        trial.storage,
        PatientThread(thread, trial.alarms),
    )

    def before_read(path: str) -> None:
        if threading.current_thread() is not threading.main_thread():
            goes_on.wait()

    trial.rot(layer_file(digests(stored(trial, NEWEST))[0]))
    trial.storage.before_read = before_read
    await trial.until(lambda: bool(trial.alarms.texts(ScrubAlarm.STALLED)))
    goes_on.set()
    thread.close()
