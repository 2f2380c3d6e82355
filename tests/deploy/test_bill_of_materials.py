"""Bills of materials: complete, valid, and the same for the same image."""

from __future__ import annotations

import json
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest

from tests.deploy.planted_image import CLEAN, CREATED, write_image
from tests.deploy.pod import ROOT
from tools.image.bill_of_materials import bill_of_materials, canonical, check, locked_hashes
from tools.image.engine import ImageError
from tools.image.image_archive import read_archive

LOCK = f"""\
some-package==1.2.3 ; sys_platform == 'linux' \\
    --hash=sha256:{"a" * 64} \\
    --hash=sha256:{"b" * 64}
    # via viewstamp (pyproject.toml)
other==2 \\
    --hash=sha256:{"c" * 64}
"""


def made(path: Path) -> tuple[str, dict[str, Any]]:
    """Return the bill of the clean image, as text and read."""
    text = bill_of_materials("viewstamp", "0.1.0", read_archive(path), LOCK)
    document: dict[str, Any] = json.loads(text)
    return text, document


def test_all_kinds_of_packages_are_listed(tmp_path: Path) -> None:
    """Debian's packages, Python's and Spark's jars are there with their versions and addresses."""
    _, document = made(write_image(tmp_path / "image.tar", [CLEAN]))

    listed = {(one["name"], one["version"], one.get("purl")) for one in document["components"]}
    assert listed == {
        ("libc6", "2.36-9", "pkg:deb/debian/libc6@2.36-9?arch=amd64&distro=debian-12"),
        ("some-package", "1.2.3", "pkg:pypi/some-package@1.2.3"),
        ("hadoop-client", "3.4.1", None),
    }
    assert document["metadata"]["timestamp"].startswith(CREATED.removesuffix("Z"))


def test_checksums_are_those_of_the_lock(tmp_path: Path) -> None:
    """A Python package carries each checksum that its installation may have been held against."""
    _, document = made(write_image(tmp_path / "image.tar", [CLEAN]))

    (package,) = [one for one in document["components"] if one["name"] == "some-package"]
    sums = [reference["hashes"][0]["content"] for reference in package["externalReferences"]]
    assert sums == ["a" * 64, "b" * 64]


def test_the_same_image_has_the_same_bill(tmp_path: Path) -> None:
    """Neither the clock nor chance is in a bill; another image has another serial number."""
    first, one = made(write_image(tmp_path / "one.tar", [CLEAN]))
    again, _ = made(write_image(tmp_path / "two.tar", [CLEAN]))
    _, other = made(write_image(tmp_path / "three.tar", [CLEAN[:-1]]))

    assert first == again
    assert one["serialNumber"] != other["serialNumber"]


def test_locks_of_this_repository_are_understood() -> None:
    """Every package of every lock is found, each with at least one checksum."""
    for path in ROOT.glob("requirements*.lock"):
        lines = [line for line in path.read_text().splitlines() if "==" in line[:80]]
        entries = [line for line in lines if not line.startswith((" ", "#"))]
        hashes = locked_hashes(path.read_text())

        assert len(hashes) == len(entries) > 10, path.name
        assert all(hashes.values()), path.name


def test_this_environment_matches_its_lock() -> None:
    """What is installed here has checksums in the lock of the server under the same names."""
    hashes = locked_hashes((ROOT / "requirements.lock").read_text())

    for name, version in hashes:
        if name != "colorama":  # only on Windows
            assert metadata.version(name) == version
            assert canonical(metadata.metadata(name)["Name"]) == name


def test_invalid_documents_are_refused() -> None:
    """A document that is no bill of materials does not pass the schema."""
    with pytest.raises(ImageError, match="bomFormat"):
        check("{}")
