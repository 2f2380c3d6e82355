"""Writes what was found as a directory or a tar.gz: redacted, and readable by its owner alone."""

from __future__ import annotations

import io
import json
import os
import re
import tarfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, BinaryIO, Final

from viewstamp.doctor.checks import Finding
from viewstamp.doctor.evidence import DoctorEvidence
from viewstamp.doctor.redaction import redacted_values, redactor

ARCHIVE_SUFFIX: Final = ".tar.gz"
# Of a source, the end of whose name tells more; file systems take 255 bytes.
NAME_CHARACTERS_MAX: Final = 120
# The directory in an archive whose name is only the suffix.
_ROOT: Final = "bundle"
_DIRECTORY_MODE: Final = 0o700
_FILE_MODE: Final = 0o600
_NO_NAME: Final = re.compile(r"[^A-Za-z0-9._-]+")


def bundle_files(evidence: DoctorEvidence, findings: Sequence[Finding]) -> dict[str, str]:
    """Return the text of each file of a bundle by its name, without secrets."""
    documents: dict[str, Any] = {
        "findings.json": [finding.as_json() for finding in findings],
        "versions.json": evidence.versions,
        "status.json": evidence.statuses,
        "snapshots.json": evidence.snapshots,
        "certificates.json": evidence.certificate_ends_s,
        "directories.json": evidence.directories,
        "configuration.json": evidence.configurations,
        "archives.json": evidence.archives,
        "failures.json": evidence.failures,
    }
    redact = redactor(evidence.secrets)
    files = {}
    for kind, texts in (("metrics", evidence.pages), ("log", evidence.logs)):
        for number, (source, text) in enumerate(texts.items()):
            # Different sources may have the same name without what no file name has.
            files[f"{kind}/{number}-{_name(redact(source))}"] = redact(text)
    for name, document in documents.items():
        # Before it is encoded: quoting would hide the end of a secret.
        value = redacted_values(document, redact)
        files[name] = json.dumps(value, indent=2, ensure_ascii=False) + "\n"
    return files


def write_bundle(path: Path, files: dict[str, str]) -> None:
    """Write a bundle; `path` must not exist. Raises OSError."""
    if path.name.endswith(ARCHIVE_SUFFIX):
        _write_archive(path, files)
        return
    path.mkdir(mode=_DIRECTORY_MODE)
    for name, text in files.items():
        (path / name).parent.mkdir(mode=_DIRECTORY_MODE, exist_ok=True)
        with _new_file(path / name) as file:
            file.write(text.encode())


def _write_archive(path: Path, files: dict[str, str]) -> None:
    root = path.name.removesuffix(ARCHIVE_SUFFIX) or _ROOT
    with _new_file(path) as file, tarfile.open(fileobj=file, mode="w:gz") as archive:
        for name, text in files.items():
            content = text.encode()
            member = tarfile.TarInfo(f"{root}/{name}")
            member.size, member.mode, member.mtime = len(content), _FILE_MODE, int(time.time())
            archive.addfile(member, io.BytesIO(content))


def _new_file(path: Path) -> BinaryIO:
    """Make a file; opened once, so that nobody can put another in its place meanwhile."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW
    return os.fdopen(os.open(path, flags, _FILE_MODE), "wb")


def _name(source: str) -> str:
    return _NO_NAME.sub("_", source).strip("_")[-NAME_CHARACTERS_MAX:]
