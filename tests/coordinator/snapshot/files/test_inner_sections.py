"""Sessions and catalog read back: every byte is counted, and older sections are migrated.

A build of feature level 1 wrote the copy directory in `level_1.tar.gz`: a stream, a session, and in
its kept reply a refusal with its words.
"""

from __future__ import annotations

import tarfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import pytest

from coordinator.mux.entities import RestoreError
from coordinator.mux.mux import Mux
from coordinator.mux.stage import Stage, cut_services
from coordinator.mux.types import CommittedPrepare, RequestReply
from coordinator.snapshot.bases import INNER_STAGES, restored_mux, section_base
from coordinator.snapshot.files import SnapshotDirectories, SnapshotFiles
from coordinator.snapshot.inner_sections import VERSIONS, entities_of, is_rewritten
from coordinator.snapshot.restore import Loaded
from coordinator.stages.codec import ProtobufCodec
from coordinator.storage import FileStorage
from services.runtime.installing import SectionContentsError, SectionInstallation
from testkit.frozen import changes_of
from testkit.service_domains import all_domains
from viewstamp.api.domain.v1 import domain_service_pb2 as pb
from viewstamp.api.errors.v1 import errors_pb2
from viewstamp.format import FormatVersionError
from viewstamp.format.manifest import section_of
from viewstamp.format.merge import merge
from viewstamp.format.section import SectionEntry, SectionTally

GOLDEN: Final = Path(__file__).parent / "level_1.tar.gz"
CLUSTER_ID: Final = bytes.fromhex("09bfd2c22740a172d33d8db40bf72e52")
SESSION_ID: Final = 7
DOMAINS: Final = {stage: all_domains()[stage] for stage in cut_services(1)}


@contextmanager
def golden(directory: Path) -> Iterator[tuple[SnapshotFiles, Loaded]]:
    """Unpack the old directory as one of three, and open its generation."""
    with tarfile.open(GOLDEN) as archive:
        archive.extractall(directory / "copy-0", filter="data")
    paths = tuple(str(directory / f"copy-{copy}") for copy in range(3))
    files = SnapshotFiles(
        FileStorage(),
        SnapshotDirectories(paths, CLUSTER_ID, 0, 1),
        report=lambda *_: None,
        reserve_bytes_min=0,
    )
    try:
        with files.load(1) as loaded:
            yield files, loaded
    finally:
        files.close()


def stored(loaded: Loaded, stage: Stage) -> list[SectionEntry]:
    """Return the entries of a section as they are on the disk."""
    layers = [layer.entries() for layer in loaded.layers[int(stage)]]
    return list(merge(layers, keep_tombstones=False))


def kept_reply(mux: Mux) -> RequestReply:
    """Return the reply that the session has not acknowledged."""
    window = mux.replies.window(SESSION_ID)
    assert window is not None
    (reply,) = window.replies.values()
    return reply


def test_a_snapshot_of_an_old_build_loads_to_the_state_of_today(tmp_path: Path) -> None:
    """A snapshot of level 1 is loaded; a refusal in a kept reply keeps its reason and loses its
    words."""
    with golden(tmp_path) as (_, loaded):
        manifest = loaded.manifest
        assert manifest.feature_level == 1
        mux = Mux({}, ProtobufCodec(), restored_mux(loaded))
        before = b"".join(entry.canonical or b"" for entry in stored(loaded, Stage.SESSIONS))
    assert b"There is a stream" in before
    (error,) = [error for span in kept_reply(mux).spans for error in span.errors]
    reason = errors_pb2.REASON_STREAM_EXISTS
    assert errors_pb2.Error.FromString(error.error) == errors_pb2.Error(reason=reason)
    assert (mux.op, mux.revision) == (manifest.cut_op, manifest.cut_revision)
    assert (mux.feature_level, mux.catalog.current().generation) == (1, 1)


def installation_of(directory: Path, stage: Stage, **announced: Any) -> SectionInstallation[object]:
    """Hand the stored section of a stage to its service, announced as it was, but for these."""
    with golden(directory) as (files, loaded):
        base = section_base(files, loaded.manifest, stage)
        begin = pb.InstallBegin(
            generation=1,
            revision=base.revision,
            section_version=base.section_version,
            state_digest=base.state_digest,
            entities=base.entities,
            layers=base.layers,
        )
        begin.MergeFrom(pb.InstallBegin(**announced))
        installation: SectionInstallation[object] = SectionInstallation(DOMAINS[stage], begin)
        for layer, block in base.blocks():
            installation.add(pb.InstallBlock(layer=layer, data=block))
    return installation


@pytest.mark.parametrize("stage", DOMAINS)
def test_services_load_an_old_snapshot(tmp_path: Path, stage: Stage) -> None:
    """The services' sections are installed whole: with every entity, byte for byte."""
    installation = installation_of(tmp_path, stage)
    for _ in installation.loading():
        pass
    assert installation.installed is not None
    with golden(tmp_path) as (_, loaded):
        entries = [(kind, key, canonical) for kind, key, canonical in stored(loaded, stage)]
    found = DOMAINS[stage].section.entities(installation.installed.state)
    assert list(found) == entries


@pytest.mark.parametrize("stage", DOMAINS)
@pytest.mark.parametrize("announced", [{"state_digest": b"d" * 32}, {"entities": 99}])
def test_services_check_what_was_announced(
    tmp_path: Path, stage: Stage, announced: dict[str, Any]
) -> None:
    """A section with another digest, or of another number of entities, is not installed."""
    installation = installation_of(tmp_path, stage, **announced)
    with pytest.raises(SectionContentsError, match="announced"):
        list(installation.loading())
    assert installation.installed is None


def test_the_next_snapshot_has_a_new_base_of_what_was_rewritten(tmp_path: Path) -> None:
    """A migrated section is written anew as a whole: no delta can continue from the old
    entities."""
    with golden(tmp_path) as (_, loaded):
        mux = Mux({}, ProtobufCodec(), restored_mux(loaded))
        section = section_of(loaded.manifest, int(Stage.SESSIONS))
        assert is_rewritten(Stage.SESSIONS, section)
    prepare = CommittedPrepare(mux.op + 1, 0, mux.revision + 1, 2**60, 1, ())
    taken = mux.catalog_stage.cut(2, mux.revision + 1, prepare)
    assert (taken.sessions.base_generation, taken.catalog.base_generation) == (0, 1)
    tally = SectionTally()
    for change in changes_of(taken.sessions):
        assert change[2] is None
        tally.add(change)
    whole = SectionTally()
    for kind, key, canonical in mux.entities():
        whole.add((kind, key, None, canonical))
    assert (tally.digest, tally.kinds) == (whole.digest, whole.kinds)
    assert tally.digest.to_bytes() != section.state_digest


@pytest.mark.parametrize("stage", INNER_STAGES)
@pytest.mark.parametrize("what", ["an entity less", "one byte else", "another digest"])
def test_what_is_not_as_it_was_cut_is_refused(tmp_path: Path, stage: Stage, what: str) -> None:
    """The stored bytes of both sections of the mux are checked by digest and counts."""
    with golden(tmp_path) as (_, loaded):
        section, entries = section_of(loaded.manifest, int(stage)), stored(loaded, stage)
    assert list(entities_of(stage, section, entries))
    match what:
        case "an entity less":
            entries.pop()
        case "one byte else":
            canonical = entries[0].canonical
            assert canonical is not None
            entries[0] = entries[0]._replace(canonical=canonical + b"\x78\x01")
        case _:
            section.state_digest = bytes(32)
    with pytest.raises(RestoreError, match=f"the {stage.name.lower()} section is not what was cut"):
        list(entities_of(stage, section, entries))


def test_nothing_is_taken_over_of_a_section_that_is_not_whole(tmp_path: Path) -> None:
    """A changed catalog on the disk stops the start before sessions are installed."""
    with golden(tmp_path) as (_, loaded):
        section_of(loaded.manifest, int(Stage.CATALOG)).kinds[0].entities += 1
        with pytest.raises(RestoreError, match="the catalog section is not what was cut: entities"):
            Mux({}, ProtobufCodec(), restored_mux(loaded))


@pytest.mark.parametrize("stage", INNER_STAGES)
def test_a_section_of_a_newer_build_is_refused(tmp_path: Path, stage: Stage) -> None:
    """An unknown version is refused; the message says which build to start."""
    with golden(tmp_path) as (_, loaded):
        section_of(loaded.manifest, int(stage)).version = VERSIONS[stage] + 1
        with pytest.raises(FormatVersionError, match="start a newer one"):
            restored_mux(loaded)


@pytest.mark.parametrize("stage", INNER_STAGES)
def test_a_section_that_nobody_can_migrate_is_refused(tmp_path: Path, stage: Stage) -> None:
    """A version before the first migration is refused, and not read as the current one."""
    with golden(tmp_path) as (_, loaded):
        section_of(loaded.manifest, int(stage)).version = 0
        with pytest.raises(FormatVersionError, match="cannot migrate"):
            restored_mux(loaded)
