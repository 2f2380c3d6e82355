"""Whose manifest a state transfer follows: peers layer one state differently, and lose files."""

from __future__ import annotations

from pathlib import Path

import pytest

from coordinator.snapshot import transfer as transfer_module
from coordinator.snapshot.layout import manifest_file
from coordinator.vsr import SnapshotNeeded
from testkit.generation_builders import COPY_DIRECTORIES, loaded_state, memory
from tests.coordinator.snapshot.files.transfer_trial import NEWEST, TransferTrial
from viewstamp.api.snapshots.v1.manifest_pb2 import SnapshotManifest
from viewstamp.format.manifest import encode_manifest, sections


@pytest.fixture(autouse=True)
def _attempts_follow_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transfer_module, "RETRY_FIRST_MS", 0)
    monkeypatch.setattr(transfer_module, "RETRY_MAX_MS", 0)


async def test_another_peers_manifest_is_followed_if_one_leads_nowhere(tmp_path: Path) -> None:
    """Peers layer one state differently. A layer that is damaged at the peer whose manifest is
    followed may be one that no other peer has, so the next attempt follows another manifest."""
    trial = TransferTrial(tmp_path)
    changed = SnapshotManifest()
    changed.CopyFrom(trial.peer.manifest)
    layer = next(section for _, section in sections(changed)).layers[0]
    layer.digest = b"damaged".ljust(len(layer.digest), b"!")
    trial.fetcher.others, trial.fetcher.lost = {1: encode_manifest(changed)}, {layer.digest}

    await trial.run()

    asked = [peers for what, peers, *_ in trial.fetcher.asked if what == "manifest"]
    # Behind the manifest that is followed comes the question which layers the other peer has.
    assert asked == [(1,), (0,), (1,), (0,), (0,), (1,)]
    assert loaded_state(trial.files, NEWEST) == trial.peer.sections.state


async def test_people_are_told_when_no_peers_manifest_leads_anywhere(
    tmp_path: Path,
) -> None:
    """Each peer has damage of its own: only starts of theirs repair it."""
    trial = TransferTrial(tmp_path)
    trial.fetcher.lost = {next(iter(trial.peer.references))}
    trial.transfer.needed(SnapshotNeeded(0, NEWEST, 20))

    await trial.until(lambda: any("restart those that name damaged files" in t for t in trial.said))

    failed = [text for text in trial.said if "cannot be fetched" in text]
    assert "restart those" not in failed[0], "the other peer was not tried yet"


async def test_a_full_disk_here_says_nothing_of_a_manifest(
    tmp_path: Path,
) -> None:
    """Layers of several manifests would take more room than those of one."""
    storage = memory()
    trial = TransferTrial(tmp_path, storage)
    storage.capacity_bytes -= storage.free_bytes("")
    trial.transfer.needed(SnapshotNeeded(1, NEWEST, 20))
    await trial.until(lambda: len([text for text in trial.said if "free space" in text]) > 4)
    storage.capacity_bytes = 1 << 40

    await trial.run()

    asked = [peers for what, peers, *_ in trial.fetcher.asked if what == "manifest"]
    assert asked.count((1,)) == 1, "its manifest was given up, and asked for again"


async def test_layers_of_a_manifest_here_that_led_nowhere_are_replaced(
    tmp_path: Path,
) -> None:
    """The generation was written here, is not the one to restart from, and has a damaged layer that
    no peer has: the layers of a peer's manifest are brought in its place."""
    trial = TransferTrial(tmp_path)
    await trial.run()
    own = SnapshotManifest()
    own.CopyFrom(trial.peer.manifest)
    layer = next(section for _, section in sections(own)).layers[0]
    layer.digest = b"own".ljust(len(layer.digest), b"!")
    for directory in COPY_DIRECTORIES:
        trial.storage.replace(f"{directory}/{manifest_file(NEWEST)}", encode_manifest(own))
    trial.fetcher.lost = {layer.digest}

    await trial.run()

    assert trial.files.stored_manifest(NEWEST) == trial.peer.manifest
    assert loaded_state(trial.files, NEWEST) == trial.peer.sections.state


async def test_a_generation_that_nobody_has_makes_room_for_an_older_one(
    tmp_path: Path,
) -> None:
    """Its only holder lost its disk; peers name the one that they have."""
    trial = TransferTrial(tmp_path)
    trial.transfer.needed(SnapshotNeeded(1, NEWEST + 1, 30))
    await trial.until(lambda: any("no peer has a manifest" in text for text in trial.said))

    await trial.run(NEWEST)

    assert trial.recorded == [(NEWEST, 20)]
