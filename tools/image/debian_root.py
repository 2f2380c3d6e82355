"""A base of Debian's packages, for machines that reach these but no registry of images."""

from __future__ import annotations

import hashlib
import os
import shutil
import tempfile
from pathlib import Path
from typing import Final

from tools.image.engine import Build, ImageError, build_image, exists, run

RELEASE: Final = "bookworm"
# The interpreter, pip's bootstrap, and what apt needs for mirrors with TLS.
PACKAGES: Final = ("ca-certificates", "libstdc++6", "python3", "python3-venv")
BASE_TAG: Final = "localhost/viewstamp-base"
# Nothing waits for the disk: a root that a power cut spoils was never put into the cache.
_APT: Final = ("apt-get", "--quiet", "--yes", "-o", "DPkg::Options::=--force-unsafe-io")
# An import that every engine has.
_DOCKERFILE: Final = "FROM scratch\nADD root.tar /\n"


def recipe() -> str:
    """Return a name for roots that are made alike."""
    text = " ".join((RELEASE, *PACKAGES))
    return f"debian-{RELEASE}-{hashlib.sha256(text.encode()).hexdigest()[:12]}"


def sources(written: str) -> str:
    """Return all sources of packages, given those that debootstrap wrote: its mirror alone.

    Corrections of security have a sibling of the mirror's directory. Raises ImageError.
    """
    first = next((line.split() for line in written.splitlines() if line.startswith("deb ")), [])
    if len(first) < 4:
        raise ImageError(f"debootstrap wrote no source of packages: {written!r}")
    mirror = first[1].rstrip("/")
    return (
        f"deb {mirror} {RELEASE} main\n"
        f"deb {mirror} {RELEASE}-updates main\n"
        f"deb {mirror}-security {RELEASE}-security main\n"
    )


def make_root(directory: Path, mirror: str | None) -> None:
    """Install Debian into an empty directory, with all corrections. Raises ImageError."""
    if os.geteuid() != 0:
        raise ImageError("debootstrap makes files of other owners: run this as root")
    if shutil.which("debootstrap") is None:
        raise ImageError("debootstrap is missing: install the Debian package `debootstrap`")
    wanted = f"--include={','.join(PACKAGES)}"
    mirrors = [] if mirror is None else [mirror]
    run("debootstrap", "--variant=minbase", wanted, RELEASE, str(directory), *mirrors)
    file = directory / "etc/apt/sources.list"
    file.write_text(sources(file.read_text()))
    # Nobody is asked, and maintainers' scripts find no language that is not there.
    chroot = ("chroot", str(directory), "env", "DEBIAN_FRONTEND=noninteractive", "LC_ALL=C")
    for verb in ("update", "upgrade", "clean"):
        run(*chroot, *_APT, verb)


def root_archive(cache: Path, mirror: str | None) -> Path:
    """Return the archive of a root, which is made only once. Raises ImageError, OSError."""
    directory = cache / recipe()
    archive = directory / "root.tar"
    if archive.exists():
        return archive
    directory.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=cache) as temporary:
        root = Path(temporary, "root")
        make_root(root, mirror)
        unfinished = Path(temporary, "root.tar")
        run("tar", "--numeric-owner", "--sort=name", "-C", str(root), "-cf", str(unfinished), ".")
        unfinished.replace(archive)
    return archive


def debian_base(program: str, cache: Path, mirror: str | None, seconds: int) -> str:
    """Return the tag of a base in an engine; makes it if need be. Raises ImageError, OSError."""
    archive = root_archive(cache, mirror)
    # An archive that was made anew, for newer corrections, is another base.
    tag = f"{BASE_TAG}:{int(archive.stat().st_mtime)}"
    if not exists(program, tag):
        dockerfile = archive.with_name("Dockerfile")
        dockerfile.write_text(_DOCKERFILE)
        build_image(program, Build(archive.parent, dockerfile, tag, None, {}, seconds))
    return tag
