"""Archives as sources of `viewstamp doctor`: read, not to be read, and silent."""

from __future__ import annotations

import threading
from functools import partial
from pathlib import Path

import pytest

from tests.viewstamp.doctor.healthy import NOW_S
from tests.viewstamp.format.archive_builders import GOLDEN_ARCHIVE
from viewstamp.cli.archive_options import opened_chain
from viewstamp.doctor import gathering
from viewstamp.doctor.checks import findings
from viewstamp.doctor.evidence import DoctorEvidence
from viewstamp.format.archive_manifest import ArchiveManifest


def newest(place: Path) -> ArchiveManifest:
    """Return the newest manifest of an archive, as the command reads it."""
    return opened_chain(str(place), None).wanted().manifest


def look(place: Path) -> DoctorEvidence:
    """Return the evidence of an archive."""
    evidence = DoctorEvidence(NOW_S)
    read = partial(newest, place)
    gathering.tried(evidence, "place", partial(gathering.look_at_archive, evidence, "place", read))
    return evidence


def test_the_newest_manifest_is_told() -> None:
    """What it says of cluster, end and gaps is what checks compare with the cluster."""
    manifest = newest(GOLDEN_ARCHIVE)
    facts = look(GOLDEN_ARCHIVE).archives["place"]

    assert facts["unreadable"] == ""
    assert (facts["cluster"], facts["manifest"]) == (manifest.cluster_id.hex(), manifest.number)
    assert facts["last_revision"] == manifest.parts[-1].last_revision > 0
    assert facts["last_time_s"] == manifest.parts[-1].last_time / 1_000_000
    assert facts["gaps"] == [list(gap) for gap in manifest.gaps]


def test_an_archive_that_cannot_be_read_is_a_finding(tmp_path: Path) -> None:
    """A place without an archive, and one whose manifest is damaged, are told by their reasons."""
    (tmp_path / "damaged" / "manifests").mkdir(parents=True)
    for path in (GOLDEN_ARCHIVE / "manifests").iterdir():
        data = bytearray(path.read_bytes())
        data[40] ^= 1
        (tmp_path / "damaged" / "manifests" / path.name).write_bytes(data)
    said = [look(tmp_path / name) for name in ("nothing", "damaged")]

    assert [[each.check for each in findings(one)] for one in said] == [["archive-unreadable"]] * 2
    reasons = [one.archives["place"]["unreadable"].partition(":")[0] for one in said]
    assert reasons == ["NO_ARCHIVE", "ARCHIVE_DAMAGED"]


def test_a_store_that_never_answers_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """The wait for a store ends, and the place is told as a source that failed."""
    monkeypatch.setattr(gathering, "ARCHIVE_TIMEOUT_S", 0.1)
    ended = threading.Event()

    def silent() -> ArchiveManifest:
        ended.wait()
        raise AssertionError("it was not given up")

    evidence = DoctorEvidence(NOW_S)
    look_at = partial(gathering.look_at_archive, evidence, "place", silent)
    gathering.tried(evidence, "place", look_at)
    ended.set()

    assert evidence.failures["place"].startswith("TimeoutError")
    assert evidence.archives == {}
