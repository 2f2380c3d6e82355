"""Build images, hold them against the rules, and say what they are made of.

    python -m tools.image [--base BASE] [--output DIRECTORY] [NAME...]

For each image the output directory gets NAME.tar, an archive in the OCI's layout, and
NAME.cdx.json, its bill of materials. An image that a rule refuses makes the command fail.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tarfile
import tomllib
from pathlib import Path
from typing import Final

from tools.image.bill_of_materials import bill_of_materials
from tools.image.debian_root import debian_base
from tools.image.engine import PROGRAMS, Build, ImageError, build_image, find_program, save_image
from tools.image.image_archive import ImageContent, read_archive
from tools.image.scan import findings

ROOT: Final = Path(__file__).resolve().parents[2]
DOCKERFILE: Final = ROOT / "deploy" / "Dockerfile"
# An image's name, which is its target in the Dockerfile -> the lock that it is installed from.
LOCKS: Final = {
    "viewstamp": "requirements.lock",
    "viewstamp-client": "requirements-client.lock",
    "viewstamp-analytics": "requirements-analytics.lock",
}
DEBOOTSTRAP: Final = "debootstrap"
# What engines and nodes make of a name without a registry.
NAMESPACE: Final = "docker.io/library"
CACHE: Final = Path.home() / ".cache" / "viewstamp-tools"


def version() -> str:
    """Return the version that images are tagged with."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    return str(project["version"])


def commit_time() -> int:
    """Return the time of the last commit, in seconds since 1970: that of all files of an image.

    Raises ImageError where there is no repository.
    """
    asked = ["git", "-C", str(ROOT), "log", "-1", "--format=%ct"]
    done = subprocess.run(asked, capture_output=True, text=True, check=False)
    if done.returncode:
        raise ImageError(f"git does not tell the time of the last commit: {done.stderr.strip()}")
    return int(done.stdout)


def build(name: str, program: str, base: str | None, output: Path) -> ImageContent:
    """Build an image and save it; return what is in it. Raises ImageError, OSError, TarError."""
    tag = f"{NAMESPACE}/{name}:{version()}"
    arguments = {} if base is None else {"BASE": base}
    build_image(program, Build(ROOT, DOCKERFILE, tag, name, arguments, commit_time()))
    archive = output / f"{name}.tar"
    save_image(program, tag, archive)
    return read_archive(archive)


def report(name: str, image: ImageContent, output: Path) -> list[str]:
    """Write an image's bill of materials, and print what it is; return what rules refuse in it.

    Raises ImageError, OSError.
    """
    lock = (ROOT / LOCKS[name]).read_text()
    (output / f"{name}.cdx.json").write_text(bill_of_materials(name, version(), image, lock))
    sizes = f"{image.size_bytes:,} bytes, {image.archive_bytes:,} packed"
    print(f"{name}: {sizes}, {len(image.files):,} files, {image.digest}")
    return [f"{name}: {line}" for line in findings(name, image)]


def options_of(arguments: list[str] | None) -> argparse.Namespace:
    """Return the options of the command line."""
    parser = argparse.ArgumentParser(prog="python -m tools.image")
    parser.add_argument("names", nargs="*", metavar="NAME", help=", ".join(LOCKS))
    parser.add_argument(
        "--base",
        help=f"an image with Python 3.11 and dpkg, or `{DEBOOTSTRAP}` (default: the Dockerfile's)",
    )
    parser.add_argument("--mirror", help="Debian's mirror for debootstrap (default: its own)")
    parser.add_argument("--engine", choices=PROGRAMS, help="(default: the first that is there)")
    parser.add_argument(
        "--cache", type=Path, default=CACHE, help="for roots (default: %(default)s)"
    )
    parser.add_argument(
        "--output", type=Path, default=ROOT / "var" / "images", help="(default: %(default)s)"
    )
    options = parser.parse_args(arguments)
    unknown = sorted(set(options.names) - LOCKS.keys())
    if unknown:
        parser.error(f"no such image: {', '.join(unknown)}; there are {', '.join(LOCKS)}")
    return options


def main(arguments: list[str] | None = None) -> int:
    """Return the exit code: 0 if all images are built and no rule refuses one, 1 otherwise."""
    options = options_of(arguments)
    refused: list[str] = []
    try:
        program = find_program(options.engine)
        base = options.base
        if base == DEBOOTSTRAP:
            base = debian_base(program, options.cache, options.mirror, commit_time())
        for name in options.names or LOCKS:
            image = build(name, program, base, options.output)
            refused += report(name, image, options.output)
    except (ImageError, OSError, tarfile.TarError) as error:
        print(f"image: {error}", file=sys.stderr)
        return 1
    for line in refused:
        print(f"image: {line}", file=sys.stderr)
    return 1 if refused else 0


if __name__ == "__main__":
    raise SystemExit(main())
