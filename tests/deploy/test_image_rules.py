"""Each rule for images refuses what it is for: a planted violation proves it."""

from __future__ import annotations

import io
import json
import tarfile
from dataclasses import replace
from pathlib import Path

import pytest

from tests.deploy.planted_image import CLEAN, ENTRIES, SETTINGS, write_image
from tools.image.engine import ImageError
from tools.image.image_archive import ImageFile, read_archive
from tools.image.scan import FINDINGS_MAX, findings, refused_files, refused_settings
from tools.image.scan_rules import EXCEPTIONS, RULES

# Joined here, so that no scanner of sources takes this file for what it describes.
KEY = b"-----BEGIN " + b"PRIVATE KEY-----\nMIGHAgEAMBMGByqGSM49AgEGCCqGSM49AwEH\n"
PLAIN = ImageFile("/opt/plain", "file", 0o644, 0, 0, 0, b"")
# Rule, and what it refuses.
PLANTED = [
    ("private key", replace(PLAIN, content=KEY)),
    ("private key", replace(PLAIN, content=KEY.replace(b"PRIVATE", b"EC PRIVATE"))),
    ("secret by its name", replace(PLAIN, path="/etc/viewstamp/cluster.key")),
    ("secret by its name", replace(PLAIN, path="/nonexistent/.netrc")),
    ("secret by its name", replace(PLAIN, path="/etc/pip.conf")),
    ("token by its shape", replace(PLAIN, content=b"key = AKIA" + b"A" * 16)),
    ("set-id bit", replace(PLAIN, mode=0o4755)),
    ("set-id bit", replace(PLAIN, mode=0o2755)),
    ("capabilities of a file", replace(PLAIN, has_capabilities=True)),
    ("writable by all", replace(PLAIN, mode=0o666)),
    ("writable by all", replace(PLAIN, path="/tmp", kind="directory", mode=0o777)),
    ("writable by all", replace(PLAIN, path="/var/tmp", kind="directory", mode=0o1777)),
    ("not root's", replace(PLAIN, owner=10001, group=10001)),
    ("not root's", replace(PLAIN, path="/var/lib/viewstamp", kind="directory")),
    ("device", replace(PLAIN, path="/dev/sda", kind="device")),
    ("compiler", replace(PLAIN, path="/usr/bin/gcc-12")),
    ("compiler", replace(PLAIN, path="/opt/java/bin/javac")),
    ("package manager", replace(PLAIN, path="/usr/bin/dpkg")),
    ("package manager", replace(PLAIN, path="/opt/viewstamp/bin/pip3.11")),
    ("builder of packages", replace(PLAIN, path="/opt/lib/site-packages/pip")),
    ("builder of packages", replace(PLAIN, path="/opt/lib/site-packages/setuptools")),
    ("way to fetch programs", replace(PLAIN, path="/usr/bin/curl")),
    ("shell", replace(PLAIN, path="/usr/bin/dash")),
    ("shell", replace(PLAIN, path="/usr/bin/sh", kind="link")),
    ("debugger or spy", replace(PLAIN, path="/usr/bin/strace")),
    ("list of a package manager", replace(PLAIN, path="/var/lib/apt/lists/mirror")),
    ("list of a package manager", replace(PLAIN, path="/var/lib/dpkg/status")),
    ("test", replace(PLAIN, path="/opt/lib/site-packages/pandas/tests/test_a.py")),
    ("checkout", replace(PLAIN, path="/opt/viewstamp/.git/HEAD")),
    ("cache", replace(PLAIN, path="/nonexistent/.cache/pip/wheel")),
    ("manual or translation", replace(PLAIN, path="/usr/share/man/man1/ls.1.gz")),
    ("log", replace(PLAIN, path="/var/log/dpkg.log")),
    ("removal", replace(PLAIN, path="/etc/.wh.shadow")),
]
# What looks like a violation and is none.
HARMLESS = [
    replace(PLAIN, content=b'"-----BEGIN PRIVATE KEY-----" in text\n'),
    replace(PLAIN, path="/tmp", kind="directory", mode=0o1777),
    replace(PLAIN, path="/usr/bin/python3.11", mode=0o755),
    replace(PLAIN, path="/usr/bin/test", mode=0o755),
    replace(PLAIN, path="/bin", kind="link", mode=0o777),
    replace(PLAIN, path="/var/lib/dpkg/status.d/libc6"),
    replace(PLAIN, path="/opt/lib/site-packages/pyspark/testing/utils.py"),
    replace(PLAIN, path="/opt/lib/python3.11/__pycache__/shlex.cpython-311.pyc"),
]


@pytest.mark.parametrize(("rule", "planted"), PLANTED, ids=lambda value: str(value)[:40])
def test_rule_refuses_what_is_planted(rule: str, planted: ImageFile) -> None:
    """Each planted file is refused by the rule that is meant for it."""
    assert [line.split(": ")[1] for line in refused_files("viewstamp", [planted])] == [rule]


@pytest.mark.parametrize("file", HARMLESS, ids=lambda file: file.path)
def test_what_is_harmless_passes(file: ImageFile) -> None:
    """No rule refuses what only looks like a violation."""
    assert list(refused_files("viewstamp", [file])) == []


def test_each_rule_has_a_planted_violation() -> None:
    """No rule is without proof that it can refuse, and each has a name of its own."""
    names = [rule.name for rule in RULES]

    assert len(set(names)) == len(names)
    assert {rule for rule, _ in PLANTED} == set(names)


def test_exceptions_are_those_of_one_image() -> None:
    """The shell of the analytics image is admitted there, and nowhere else."""
    shell = replace(PLAIN, path="/usr/bin/bash")

    assert list(refused_files("viewstamp-analytics", [shell])) == []
    assert len(list(refused_files("viewstamp-client", [shell]))) == 1
    assert EXCEPTIONS.keys() == {"viewstamp-analytics"}


@pytest.mark.parametrize(
    ("changed", "complaint"),
    [
        ({"User": ""}, "as a user and a group by number"),
        ({"User": "0:0"}, "as a user and a group by number"),
        ({"User": "viewstamp"}, "as a user and a group by number"),
        ({"Env": ["ROOT_PASSWORD=sesame"]}, "variable ROOT_PASSWORD"),
    ],
)
def test_settings_are_judged(changed: dict[str, object], complaint: str) -> None:
    """Root, accounts by name, and secrets in variables are refused."""
    configuration = {"config": {**SETTINGS["config"], **changed}}

    (line,) = refused_settings(configuration)

    assert complaint in line
    assert list(refused_settings(SETTINGS)) == []


def test_secrets_in_the_history_are_refused() -> None:
    """What a step of the build was given stays in the image's history."""
    history = [{"created_by": "ARG INDEX_TOKEN=sesame"}]

    assert len(list(refused_settings({**SETTINGS, "history": history}))) == 1


def test_all_layers_are_read(tmp_path: Path) -> None:
    """What a later layer covers or removes is found, whether layers are compressed or not."""
    planted = [("usr/bin/gcc", 0o4755, b"")]
    for packed in (True, False):
        image = write_image(tmp_path / f"{packed}.tar", [[*CLEAN, *planted], CLEAN], packed)

        lines = findings("viewstamp", read_archive(image))

        assert sorted(line.split(": ")[1] for line in lines) == ["compiler", "set-id bit"]


def test_a_clean_image_passes(tmp_path: Path) -> None:
    """An archive without violations has no findings, and tells its size and digest."""
    image = read_archive(write_image(tmp_path / "image.tar", [CLEAN]))

    assert findings("viewstamp", image) == []
    assert image.size_bytes == sum(len(content) for _, _, content in CLEAN)
    assert image.digest.startswith("sha256:") and len(image.digest) == 71


def test_findings_are_bounded(tmp_path: Path) -> None:
    """An image that is all wrong is told in a page, and how much more there is."""
    many = [(f"opt/{number}.key", 0o644, b"") for number in range(FINDINGS_MAX + 3)]

    lines = findings("viewstamp", read_archive(write_image(tmp_path / "image.tar", [many])))

    assert len(lines) == FINDINGS_MAX + 1
    assert lines[-1] == "and 3 more"


@pytest.mark.parametrize("missing", [name for name in ENTRIES if name != "oci-layout"])
def test_incomplete_archives_are_refused(tmp_path: Path, missing: str) -> None:
    """An archive that lacks its index or what the index names is refused by name."""
    whole = write_image(tmp_path / "whole.tar", [CLEAN])
    torn = tmp_path / "torn.tar"
    with tarfile.open(whole) as source, tarfile.open(torn, "w") as copy:
        for member in source:
            if not member.name.startswith(missing):
                stream = source.extractfile(member)
                copy.addfile(member, stream)

    with pytest.raises(ImageError, match="lacks"):
        read_archive(torn)


def test_archives_of_several_images_are_refused(tmp_path: Path) -> None:
    """Nobody can tell which of two images would be meant."""
    path = tmp_path / "two.tar"
    index = json.dumps({"manifests": [{}, {}]}).encode()
    with tarfile.open(path, "w") as archive:
        entry = tarfile.TarInfo("index.json")
        entry.size = len(index)
        archive.addfile(entry, io.BytesIO(index))

    with pytest.raises(ImageError, match="2 images"):
        read_archive(path)
