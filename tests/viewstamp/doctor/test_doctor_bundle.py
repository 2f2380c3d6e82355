"""The bundle of `viewstamp doctor` has what was found, and no secret."""

from __future__ import annotations

import json
import os
import tarfile
from pathlib import Path
from typing import Final

import pytest

from tests.viewstamp.doctor.healthy import DIRECTORY, healthy
from viewstamp.doctor.bundle import bundle_files, write_bundle
from viewstamp.doctor.checks import findings
from viewstamp.doctor.evidence import DoctorEvidence
from viewstamp.doctor.gathering import (
    LOG_BYTES_MAX,
    LOGS_MAX,
    look_at_directory,
    look_at_log,
    tried,
)
from viewstamp.doctor.redaction import REDACTED, redactor

KEY: Final = "0a" * 32
DIGEST: Final = "0b" * 32
# Written in two parts, so that nobody takes it for a key.
PEM: Final = "-----BEGIN PRIVATE " + "KEY-----\nTUlJQg\n-----END PRIVATE " + "KEY-----"

# Text, and the secret in it that has to go.
SECRETS: Final = [
    (f"a\n{PEM}\nb", "TUlJQg"),
    (json.dumps({"tls": PEM}), "TUlJQg"),
    (PEM.partition("\n-----END")[0], "TUlJQg"),  # cut off
    (f"token vsa2.{'A' * 32}.{'b' * 43} expired", "A" * 32),
    (f"VIEWSTAMP_PERSONAL_ACCESS_TOKEN=vspat_{'abcd2345' * 4}", "abcd2345"),
    ("--otlp-endpoint=http://someone:hunter2@collector:4317", "hunter2"),
    ("authorization: Bearer abc.def-ghi", "abc.def-ghi"),
    ('{"password": "hunter2"}', "hunter2"),
    ("password=hunter2 other", "hunter2"),
    (f"cluster-key={KEY}", KEY),
    ("known by its value: correct-horse!", "correct-horse"),
    (r"known by its value in JSON: \"qu\\ote\"", "ote"),
    ("known by its value in a URL: %22qu%5Cote%22", "ote"),
    ("TUlJQg\n" + "-----END PRIVATE " + "KEY-----", "TUlJQg"),  # cut off at its beginning
    ('password: "correct battery"', "battery"),
    ("passphrase='correct battery'", "battery"),
    (json.dumps({"message": 'password: "correct battery"'}), "battery"),
    (r'{"password": "a\"battery"}', "battery"),
    ('{"root_password": ["hunter2"]}', "hunter2"),
    ("token=hunter2", "hunter2"),
    ("Authorization: Basic aHVudGVyMg==", "aHVudGVyMg"),
    ("http://:hunter2@host", "hunter2"),
    ("http://user:hun@ter2@host", "ter2"),
    ("http://hunter2@host", "hunter2"),
]


@pytest.mark.parametrize(("text", "secret"), SECRETS)
def test_secrets_go(text: str, secret: str) -> None:
    """What is known as a secret or looks like one is replaced."""
    redacted = redactor({"correct-horse!", r'"qu\ote"'})(text)
    assert secret not in redacted
    assert REDACTED in redacted


@pytest.mark.parametrize(
    "text",
    [
        f"root {DIGEST}",
        "--tls-key=/etc/viewstamp/tls.key --cluster-key /etc/cluster.key",
        "password_file: /run/password",
        "http://collector:4317",
        "key: value",
        "password: '\nanother line",
    ],
)
def test_what_is_no_secret_stays(text: str) -> None:
    """Digests, paths of keys and addresses are what somebody needs who reads the bundle."""
    assert redactor(set())(text) == text


def planted() -> DoctorEvidence:
    """Return evidence with a secret at each place."""
    evidence = healthy()
    evidence.secrets = {"correct-horse!", "a/b"}
    secret = "correct-horse!"
    evidence.statuses["a:7400"]["description"] = secret
    evidence.directories[DIRECTORY]["process"]["arguments"] = [f"--x={secret}"]
    evidence.directories[DIRECTORY]["process"]["variables"] = [f"VIEWSTAMP_ACCESS_TOKEN={secret}"]
    evidence.configurations["viewstamp.yaml"]["problems"] = [secret]
    evidence.archives["s3://a:correct-horse!@b/c"] = {"unreadable": f"NO_ARCHIVE: {secret}"}
    evidence.failures[f"http://root:{secret}@a:1"] = f"UNAVAILABLE: {secret}"
    evidence.logs[f"{secret}.log"] = f'{{"level": "error", "message": "{secret}"}}'
    evidence.pages[f"root:{secret}@a:1"] = f'viewstamp_op{{a="{secret}"}} 1'
    assert evidence.snapshots is not None
    evidence.snapshots[0]["failure"] = secret
    return evidence


@pytest.mark.parametrize("name", ["bundle", "bundle.tar.gz"])
def test_no_planted_secret_leaves(tmp_path: Path, name: str) -> None:
    """A secret at each place of the evidence is in no file of the bundle, and in no name."""
    evidence = planted()
    write_bundle(tmp_path / name, bundle_files(evidence, findings(evidence)))
    directory = tmp_path / "bundle"
    if name.endswith(".gz"):
        assert (tmp_path / name).stat().st_mode & 0o777 == 0o600
        with tarfile.open(tmp_path / name) as archive:
            archive.extractall(tmp_path, filter="data")
    files = [path for path in directory.rglob("*") if path.is_file()]
    texts = {str(path.relative_to(directory)): path.read_text() for path in files}
    assert len(texts) == 9 + 1 + 2
    assert all(path.stat().st_mode & 0o777 == 0o600 for path in files)
    assert [name for name, text in texts.items() if "horse" in name + text] == []
    for name in ("status", "directories", "configuration", "failures", "findings", "snapshots"):
        assert REDACTED in texts[f"{name}.json"], name


def test_a_bundle_replaces_nothing(tmp_path: Path) -> None:
    """A path that exists is refused, and left as it was."""
    (tmp_path / "there.tar.gz").write_text("mine")
    (tmp_path / "there").mkdir()
    for name in ("there", "there.tar.gz"):
        with pytest.raises(FileExistsError):
            write_bundle(tmp_path / name, {"a": "b"})
    assert (tmp_path / "there.tar.gz").read_text() == "mine"


def test_sources_with_like_names_are_kept_apart() -> None:
    """Two logs whose names differ only in what no file name has are two files."""
    evidence = healthy()
    evidence.logs = {"a/b.log": "one", "a_b.log": "two"}
    files = bundle_files(evidence, [])
    assert [text for name, text in files.items() if name.startswith("log/")] == ["one", "two"]


def test_redaction_takes_no_square_of_steps() -> None:
    """A log that is full of what begins like a secret is redacted, however long it is."""
    for text in ("password: " + " " * LOG_BYTES_MAX, "password:" * (LOG_BYTES_MAX // 9)):
        assert len(redactor(set())(text)) > 0


def test_odd_names_end_no_bundle(tmp_path: Path) -> None:
    """Names that are no Unicode, or longer than a file's name may be, come into a bundle."""
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / os.fsdecode(b"\xff.log")).write_text("a")
    evidence = DoctorEvidence(0.0)
    look_at_directory(evidence, tmp_path / "data")
    evidence.logs["a/" * 400 + os.fsdecode(b"\xfe.log")] = "b"
    write_bundle(tmp_path / "bundle", bundle_files(evidence, []))
    assert "\\udcff.log" in (tmp_path / "bundle" / "directories.json").read_text()
    (log,) = (tmp_path / "bundle" / "log").iterdir()
    assert log.read_text() == "b"


def test_an_archive_with_no_name_but_its_suffix(tmp_path: Path) -> None:
    """Its members stay in a directory."""
    write_bundle(tmp_path / ".tar.gz", {"a": "b"})
    with tarfile.open(tmp_path / ".tar.gz") as archive:
        assert archive.getnames() == ["bundle/a"]


def test_logs_are_bounded(tmp_path: Path) -> None:
    """Of a large log the end is kept; one log too many is a failure of that source alone."""
    evidence = DoctorEvidence(0.0)
    path = tmp_path / "large.log"
    line = "x" * 99 + "\n"
    path.write_text(line * (LOG_BYTES_MAX // 100) + line + "end")
    look_at_log(evidence, path)
    kept = evidence.logs[str(path)]
    assert LOG_BYTES_MAX - 100 < len(kept) <= LOG_BYTES_MAX
    # Half a line may have half a secret, which nobody would know as one.
    assert kept.startswith(line) and kept.endswith("end")
    for number in range(LOGS_MAX):
        (tmp_path / str(number)).write_text("a")
        tried(evidence, str(number), lambda n=number: look_at_log(evidence, tmp_path / str(n)))  # type: ignore[misc]
    assert len(evidence.logs) == LOGS_MAX
    assert list(evidence.failures) == [str(LOGS_MAX - 1)]
