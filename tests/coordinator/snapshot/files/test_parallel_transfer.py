"""Layers from several peers at once: in parts, around peers that stand still, never mixed up."""

from __future__ import annotations

from pathlib import Path

import pytest

from coordinator.snapshot import layer_fetching, layer_parts
from coordinator.snapshot import transfer as transfer_module
from coordinator.snapshot.layer_parts import parts_of
from coordinator.snapshot.layer_sources import FETCHES_MAX, FETCHES_PER_PEER_MAX, FRUITLESS_MAX
from coordinator.vsr import SnapshotNeeded
from testkit.generation_builders import loaded_state
from tests.coordinator.snapshot.files.transfer_trial import NEWEST, TransferTrial
from viewstamp.api.snapshots.v1.manifest_pb2 import LayerReference, SnapshotManifest
from viewstamp.format.manifest import encode_manifest, sections
from viewstamp.limits import MIB

PART_BYTES = 400


@pytest.fixture(autouse=True)
def _small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Divide even a small layer, and never wait long."""
    monkeypatch.setattr(layer_parts, "PART_BYTES_MIN", PART_BYTES)
    monkeypatch.setattr(layer_fetching, "TAKE_OVER_MS", 250)
    monkeypatch.setattr(layer_fetching, "LOOK_MS", 5)
    monkeypatch.setattr(transfer_module, "RETRY_FIRST_MS", 0)
    monkeypatch.setattr(transfer_module, "RETRY_MAX_MS", 0)


@pytest.mark.parametrize(
    ("size_bytes", "parts"),
    [(1, 1), (4 * MIB - 1, 1), (4 * MIB, 2), (13 * MIB, 6), (1024 * MIB, 16)],
)
def test_parts_of_a_layer(size_bytes: int, parts: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Parts cover the layer without gaps, are of at least 2 MiB, and are few."""
    monkeypatch.setattr(layer_parts, "PART_BYTES_MIN", 2 * MIB)
    found = parts_of(LayerReference(digest=b"d" * 32, size_bytes=size_bytes))
    assert len(found) == parts
    assert [part.begin for part in found] == [0, *(part.end for part in found[:-1])]
    assert found[-1].end == size_bytes


async def test_one_layer_comes_from_two_peers(tmp_path: Path) -> None:
    """The parts of one layer come from both peers at once, and each byte comes once."""
    trial = TransferTrial(tmp_path)
    await trial.run()
    largest = max(trial.peer.references, key=trial.peer.references.__getitem__)
    parts = parts_of(LayerReference(digest=largest, size_bytes=trial.peer.references[largest]))
    assert len(parts) > 2
    assert min(trial.fetcher.sent_by[replica] for replica in trial.others) > PART_BYTES
    assert trial.fetcher.bytes_sent == sum(trial.peer.references.values())
    assert loaded_state(trial.files, NEWEST) == trial.peer.sections.state


async def test_fetches_are_few(tmp_path: Path) -> None:
    """No peer is asked for more than two parts at once, and all together for six."""
    trial = TransferTrial(tmp_path)
    trial.others = tuple(range(5))
    await trial.run()
    assert max(trial.fetcher.most_under_way.values()) == FETCHES_PER_PEER_MAX
    assert trial.fetcher.most_at_once == FETCHES_MAX


@pytest.mark.parametrize("which", [0, 1])
async def test_a_peer_that_stands_still_holds_nothing_up(tmp_path: Path, which: int) -> None:
    """Another peer takes over what one does not send, even if it sent the manifest."""
    trial = TransferTrial(tmp_path)
    trial.fetcher.stalled = {which}
    await trial.run()
    assert trial.fetcher.stalls, "nothing was asked of it"
    assert trial.fetcher.sent_by[which] == 0
    assert loaded_state(trial.files, NEWEST) == trial.peer.sections.state
    assert len([text for text in trial.said if "cannot be fetched" in text]) == 0


async def test_a_peer_that_dies_midway_is_left(tmp_path: Path) -> None:
    """What a peer has sent until then counts, and the others send the rest in the same attempt."""
    trial = TransferTrial(tmp_path)

    def die() -> None:
        if trial.fetcher.sent_by[1] > PART_BYTES:
            trial.fetcher.dead = {1}

    trial.fetcher.before_layer = die
    await trial.run()
    assert trial.fetcher.dead == {1}
    assert trial.fetcher.bytes_sent == sum(trial.peer.references.values())
    assert [text for text in trial.said if "cannot be fetched" in text] == []


async def test_a_busy_peer_is_asked_for_less_at_once(tmp_path: Path) -> None:
    """A peer with one place sends part after part, and the attempt does not fail."""
    trial = TransferTrial(tmp_path)
    trial.others = (1,)
    trial.fetcher.busy = {1: 1}
    await trial.run()
    assert trial.fetcher.most_under_way[1] == 1
    assert [text for text in trial.said if "cannot be fetched" in text] == []


async def test_a_peer_is_asked_for_what_its_manifest_names(tmp_path: Path) -> None:
    """A peer that has merged a chain sends the layers that it has, and is not asked for others."""
    trial = TransferTrial(tmp_path)
    other = SnapshotManifest()
    other.CopyFrom(trial.peer.manifest)
    own = {section.layers[0].digest for _, section in sections(other) if section.layers}
    first = next(section for _, section in sections(other)).layers[0]
    kept = own - {first.digest}
    first.digest = b"merged".ljust(len(first.digest), b"!")
    trial.fetcher.others = {0: encode_manifest(other)}
    await trial.run()
    asked = trial.fetcher.digests_asked
    assert own - kept == asked[1] - asked[0] - _deltas(trial)
    assert asked[0]


def _deltas(trial: TransferTrial) -> set[bytes]:
    layers = (section.layers[1:] for _, section in sections(trial.peer.manifest))
    return {layer.digest for several in layers for layer in several}


async def test_a_mistaken_layer_comes_from_one_peer_next(tmp_path: Path) -> None:
    """Who sends wrong bytes is not known of parts of several peers, so one sends all of them."""
    trial = TransferTrial(tmp_path)
    digest = max(trial.peer.references, key=trial.peer.references.__getitem__)
    trial.fetcher.liars = {1}
    await trial.run()
    assert any("came with the digest" in each for each in trial.said)
    layer = LayerReference(digest=digest, size_bytes=trial.peer.references[digest])
    assert trial.fetcher.last_asked(digest, len(parts_of(layer))) == {0}
    assert loaded_state(trial.files, NEWEST) == trial.peer.sections.state


async def test_nobody_sends_a_part(tmp_path: Path) -> None:
    """The attempt ends once each peer has said that it does not send it, with their words."""
    trial = TransferTrial(tmp_path)
    trial.fetcher.lost = {next(iter(trial.peer.references))}
    trial.transfer.needed(SnapshotNeeded(0, NEWEST, 20))
    await trial.until(lambda: any("cannot be fetched" in text for text in trial.said))
    said = next(text for text in trial.said if "cannot be fetched" in text)
    assert "replica 0: DATA_LOSS" in said
    assert "replica 1: DATA_LOSS" in said


async def test_a_peer_that_is_given_up_is_not_asked_again(tmp_path: Path) -> None:
    """Of a dead peer three fetches in a row are tried, with what is under way by then, however many
    parts there are."""
    trial = TransferTrial(tmp_path)
    trial.fetcher.dead = {1}
    await trial.run()
    asked = [who for what, who, *_ in trial.fetcher.asked if what == "layer"]
    assert asked.count((1,)) == FRUITLESS_MAX + FETCHES_PER_PEER_MAX - 1
    assert len(asked) > 10
