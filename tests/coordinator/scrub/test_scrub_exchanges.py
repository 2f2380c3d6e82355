"""Layers are exchanged for those of peers while others use the snapshot, or go on from it."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path

import pytest

from coordinator.mux.stage import Stage
from coordinator.scrub.remedies import DamagedPart
from coordinator.snapshot.adoption import Adoption, AdoptionPorts
from coordinator.snapshot.bases import section_base
from coordinator.snapshot.errors import CopyNotWritten
from coordinator.snapshot.generation_writer import GenerationWriter
from coordinator.snapshot.layout import layer_file
from coordinator.stages.base import BaseExchangedError, InstalledSection
from testkit.generation_builders import STAGES, empty_manifest, write_section
from tests.coordinator.scrub.scrub_trial import NEWEST, InlineWriter, ScrubTrial
from tests.coordinator.scrub.test_scrub_snapshots import MendingTrial
from viewstamp.api.snapshots.v1.manifest_pb2 import SnapshotManifest
from viewstamp.format.manifest import encode_manifest, root_of, section_of

STAGE = Stage(2)


def stored(trial: ScrubTrial, generation: int) -> SnapshotManifest:
    """Return a manifest that is here."""
    manifest = trial.files.stored_manifest(generation)
    assert manifest is not None
    return manifest


def digests(manifest: SnapshotManifest) -> list[bytes]:
    """Return the layers of the stage under test."""
    return [layer.digest for layer in section_of(manifest, STAGE).layers]


def with_other_layers(directory: Path) -> tuple[MendingTrial, bytes]:
    """Return a replica whose peers have generation 3 in other layers, and one that they lack."""
    mending = MendingTrial(directory)
    trial, peer = mending.trial, mending.fetcher.peer
    trial.files.compact(stored(trial, NEWEST), STAGE)
    for sections in (trial.sections, peer.sections):
        sections.write(3, {2: {(1, b"000200"): b"new"}})
    peer.add_manifest(3)
    theirs = peer.files.stored_manifest(3)
    assert theirs is not None
    lost = [each for each in digests(stored(trial, 3)) if each not in digests(theirs)]
    mending.fetcher.lost.update(lost)
    return mending, lost[0]


async def test_a_base_with_another_count_of_layers_is_not_sent(tmp_path: Path) -> None:
    """A service that was told of the old layers gets none of the new ones before it begins anew."""
    mending, lost = with_other_layers(tmp_path)
    trial = mending.trial
    before = section_base(trial.files, stored(trial, 3), STAGE)
    assert {layer for layer, _ in before.blocks()} == set(range(before.layers))
    trial.rot(layer_file(lost))
    await mending.mending.bring(3, layer_file(lost))
    with pytest.raises(BaseExchangedError, match="was announced"):
        list(before.blocks())
    after = section_base(trial.files, stored(trial, 3), STAGE)
    assert after.layers != before.layers
    assert {layer for layer, _ in after.blocks()} == set(range(after.layers))


class _Service:
    """A service that knows its base."""

    def __init__(self) -> None:
        self.base: InstalledSection | None = None

    def move_base(self, base: InstalledSection) -> None:
        """Start from this section."""
        self.base = base

    def exchange_base(self, base: InstalledSection) -> None:
        """Start from these layers."""
        self.base = base


async def _freed() -> None:
    """Nothing waits for room."""


async def test_an_exchange_beside_an_adoption_is_not_lost(tmp_path: Path) -> None:
    """Layers exchanged while the superblock is written are those that the services start from."""
    mending, lost = with_other_layers(tmp_path)
    trial = mending.trial
    services = {stage: _Service() for stage in Stage}
    writes, may_end = threading.Event(), threading.Event()

    def record(generation: int, cut_op: int) -> None:
        writes.set()
        may_end.wait()

    adoption = Adoption(
        trial.files,
        AdoptionPorts(
            writer=InlineWriter(),
            record=record,
            truncate=lambda op: 0,
            services=services,
            release=lambda generation: None,
            kept=lambda: (),
            copied=lambda generation, directories: None,
            freed=_freed,
            start=lambda work: work.close(),
        ),
    )
    adoption.start_from(stored(trial, NEWEST))
    adopting = asyncio.create_task(adoption.adopt(3))
    await asyncio.to_thread(writes.wait)
    trial.rot(layer_file(lost))
    await mending.mending.bring(3, layer_file(lost))
    exchanging = asyncio.create_task(adoption.exchanged(3))
    await asyncio.sleep(0)
    may_end.set()
    await asyncio.gather(adopting, exchanging)
    assert adoption.adopted is not None
    assert lost not in digests(adoption.adopted)
    base = services[STAGE].base
    assert base is not None
    assert base.layers == len(digests(stored(trial, 3)))


async def test_no_generation_completes_on_a_layer_lost_meanwhile() -> None:
    """A layer that is lost after a generation was begun on it keeps its manifest from being
    written; once it is back, the manifest is."""
    trial = ScrubTrial(replica_count=1)
    digest = digests(stored(trial, NEWEST))[0]
    name = layer_file(digest)
    good = trial.storage.content(f"{trial.files.directories[0]}/{name}")
    writer = GenerationWriter(trial.files, empty_manifest(3, 30, trial.sections.manifest))
    for stage in STAGES:
        write_section(writer, stage, NEWEST, [], trial.sections.tallies[stage], 30)
    trial.rot(name)
    await trial.until(lambda: trial.tally.standing[DamagedPart.FILE] == 1)
    with pytest.raises(CopyNotWritten, match="bring the file back first"):
        writer.finish()
    assert trial.files.stored_manifest(3) is None
    trial.storage.replace(f"{trial.files.directories[0]}/{name}", good)
    writer.finish()
    assert trial.files.problems(3) == []


@pytest.mark.parametrize("how", ["newer", "diverged"])
async def test_a_peer_that_is_no_use_is_not_the_last_one_asked(how: str, tmp_path: Path) -> None:
    """A manifest with another root, or of a newer build, leaves the next peer to be asked."""
    mending = MendingTrial(tmp_path)
    trial, fetcher = mending.trial, mending.fetcher
    before = stored(trial, NEWEST)
    name = trial.manifest()
    if how == "newer":
        fetcher.too_new.add(1)
        trial.rot(name)
    else:
        other = stored(trial, NEWEST)
        section_of(other, STAGE).state_digest = b"\1" * 32
        other.root = root_of(other)
        fetcher.others[1] = encode_manifest(other)
        name = f"{name}.of-no-layer"
    await mending.mending.bring(NEWEST, name)
    assert stored(trial, NEWEST).root == before.root
    assert {asked for what, asked, *_ in fetcher.asked if what == "manifest"} >= {(1,), (2,)}
