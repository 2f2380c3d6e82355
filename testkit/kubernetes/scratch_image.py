"""Images of a few programs without a base, as archives that an engine imports."""

from __future__ import annotations

import hashlib
import io
import json
import platform
import tarfile
from collections.abc import Mapping, Sequence
from pathlib import Path


def write(archive: Path, name: str, programs: Mapping[str, Path], command: Sequence[str]) -> None:
    """Write an image: programs by their names in /bin, and the command that it runs."""
    layer = _layer(programs)
    configuration = json.dumps(
        {
            "architecture": _architecture(),
            "os": "linux",
            "config": {"Entrypoint": list(command), "Env": ["PATH=/bin"]},
            "rootfs": {"type": "layers", "diff_ids": [f"sha256:{_digest(layer)}"]},
        }
    ).encode()
    file = f"{_digest(configuration)}.json"
    manifest = [{"Config": file, "RepoTags": [name], "Layers": ["layer.tar"]}]
    with tarfile.open(archive, "w") as output:
        _add(output, "layer.tar", layer)
        _add(output, file, configuration)
        _add(output, "manifest.json", json.dumps(manifest).encode())


def _layer(programs: Mapping[str, Path]) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as layer:
        # Where programs put what they keep for a moment.
        for directory in ("bin", "tmp"):
            entry = tarfile.TarInfo(directory)
            entry.type, entry.mode = tarfile.DIRTYPE, 0o1777 if directory == "tmp" else 0o755
            layer.addfile(entry)
        for name, path in programs.items():
            _add(layer, f"bin/{name}", path.read_bytes(), 0o755)
    return buffer.getvalue()


def _add(archive: tarfile.TarFile, name: str, content: bytes, mode: int = 0o644) -> None:
    entry = tarfile.TarInfo(name)
    entry.size, entry.mode = len(content), mode
    archive.addfile(entry, io.BytesIO(content))


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def _architecture() -> str:
    return {"x86_64": "amd64", "aarch64": "arm64"}[platform.machine()]
