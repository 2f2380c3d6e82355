"""Reads an image's archive, layer by layer: what a later layer removes is still in the image."""

from __future__ import annotations

import hashlib
import json
import tarfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, Final

from tools.image.engine import ImageError

# Of a file whose text rules look at; a private key is far smaller, a shared library far larger.
CONTENT_BYTES_MAX: Final = 1 << 20
# How archives write what `setcap` gave to a file.
CAPABILITY: Final = "SCHILY.xattr.security.capability"


@dataclass(frozen=True, slots=True)
class ImageFile:
    """One path of a layer, as its archive describes it."""

    path: str  # absolute
    kind: str  # "file", "directory", "link" (symbolic or hard) or "device"
    mode: int
    owner: int
    group: int
    size_bytes: int
    content: bytes  # of a file of at most CONTENT_BYTES_MAX bytes, otherwise its first bytes
    sha256: str = ""  # of a file, in hexadecimal
    has_capabilities: bool = False


@dataclass(frozen=True, slots=True)
class ImageContent:
    """What an archive holds."""

    digest: str  # of the manifest, as a registry names it
    configuration: dict[str, Any]  # user, environment, command, history
    files: tuple[ImageFile, ...]
    archive_bytes: int

    @property
    def size_bytes(self) -> int:
        """The bytes of all files, which is what a node has to keep."""
        return sum(file.size_bytes for file in self.files)


def _kind(member: tarfile.TarInfo) -> str:
    if member.isfile():
        return "file"
    if member.isdir():
        return "directory"
    return "link" if member.issym() or member.islnk() else "device"


def _read(stream: IO[bytes] | None) -> tuple[bytes, str]:
    """Return the first bytes of a file, and the checksum of all."""
    if stream is None:
        return b"", ""
    content = stream.read(CONTENT_BYTES_MAX)
    digest = hashlib.sha256(content)
    while chunk := stream.read(CONTENT_BYTES_MAX):
        digest.update(chunk)
    return content, digest.hexdigest()


def layer_files(layer: tarfile.TarFile) -> Iterator[ImageFile]:
    """Yield the paths of a layer, in its order."""
    for member in layer:
        content, digest = _read(layer.extractfile(member) if member.isfile() else None)
        yield ImageFile(
            path="/" + member.name.removeprefix("./").strip("/").removeprefix("."),
            kind=_kind(member),
            mode=member.mode,
            owner=member.uid,
            group=member.gid,
            size_bytes=member.size,
            content=content,
            sha256=digest,
            has_capabilities=CAPABILITY in member.pax_headers,
        )


@contextmanager
def _layer(archive: tarfile.TarFile, name: str) -> Iterator[tarfile.TarFile]:
    """Open a layer, compressed or not."""
    with tarfile.open(fileobj=_blob(archive, name), mode="r|*") as layer:
        yield layer


def _blob(archive: tarfile.TarFile, name: str) -> IO[bytes]:
    """Open a blob by its path or digest. Raises ImageError if the archive lacks it."""
    path = f"blobs/{name.replace(':', '/')}" if ":" in name else name
    try:
        stream = archive.extractfile(path)
    except KeyError as error:
        raise ImageError(f"{archive.name!r} lacks {path}: save the image again") from error
    if stream is None:
        raise ImageError(f"{path} in {archive.name!r} is no file: save the image again")
    return stream


def read_archive(path: Path) -> ImageContent:
    """Read an archive in the OCI's layout. Raises ImageError, OSError, tarfile.TarError."""
    with tarfile.open(path) as archive:
        index = json.load(_blob(archive, "index.json"))
        if len(index["manifests"]) != 1:
            raise ImageError(f"{path} holds {len(index['manifests'])} images, and not one")
        digest = index["manifests"][0]["digest"]
        manifest = json.load(_blob(archive, digest))
        files: list[ImageFile] = []
        for layer in manifest["layers"]:
            with _layer(archive, layer["digest"]) as opened:
                files += layer_files(opened)
        configuration = json.load(_blob(archive, manifest["config"]["digest"]))
    return ImageContent(digest, configuration, tuple(files), path.stat().st_size)
