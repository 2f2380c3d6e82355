"""Archives of images that tests put together file by file."""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import tarfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final, TypeAlias

Entry: TypeAlias = tuple[str, int, bytes]  # path, mode, content

ENTRIES: Final = ("oci-layout", "index.json", "blobs/")
CREATED: Final = "2026-01-02T03:04:05Z"
SETTINGS: Final[dict[str, Any]] = {
    "created": CREATED,
    "config": {"User": "10001:10001", "Env": ["PATH=/usr/bin"]},
    "history": [{"created_by": "COPY /image /"}],
}
STATUS: Final = b"""\
Package: libc6
Status: install ok installed
Architecture: amd64
Version: 2.36-9
Description: GNU C Library
 More of it.
"""
METADATA: Final = b"""\
Metadata-Version: 2.4
Name: Some_Package
Version: 1.2.3
Summary: Does something
License-Expression: MIT

Text.
"""
PACKAGES: Final = "opt/viewstamp/lib/python3.11/site-packages"
CLEAN: Final[tuple[Entry, ...]] = (
    ("usr/bin/python3.11", 0o755, b"\x7fELF"),
    ("var/lib/dpkg/status.d/libc6", 0o644, STATUS),
    (f"{PACKAGES}/some_package-1.2.3.dist-info/METADATA", 0o644, METADATA),
    (f"{PACKAGES}/pyspark/jars/hadoop-client-3.4.1.jar", 0o644, b"PK"),
)


def _tar(entries: Sequence[Entry]) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        for path, mode, content in entries:
            member = tarfile.TarInfo(path)
            member.mode, member.size = mode, len(content)
            archive.addfile(member, io.BytesIO(content))
    return buffer.getvalue()


def write_image(path: Path, layers: Sequence[Sequence[Entry]], packed: bool = True) -> Path:
    """Write an archive in the OCI's layout with these layers, lowest first; return its path."""
    blobs: list[Entry] = []

    def add(content: bytes) -> dict[str, str]:
        digest = hashlib.sha256(content).hexdigest()
        blobs.append((f"blobs/sha256/{digest}", 0o644, content))
        return {"digest": f"sha256:{digest}"}

    tars = [_tar(layer) for layer in layers]
    described = [add(gzip.compress(tar) if packed else tar) for tar in tars]
    manifest = {"config": add(json.dumps(SETTINGS).encode()), "layers": described}
    index = {"manifests": [add(json.dumps(manifest).encode())]}
    layout: list[Entry] = [
        ("oci-layout", 0o644, b'{"imageLayoutVersion": "1.0.0"}'),
        ("index.json", 0o644, json.dumps(index).encode()),
    ]
    path.write_bytes(_tar([*layout, *blobs]))
    return path
