"""This program's code as one file, for machines of a cluster on which it is not installed.

    python -m analytics.package viewstamp-analytics.zip

`session.build` sends it to executors by itself; you need the file by hand only where the driver has
no checkout either: `spark-submit --py-files viewstamp-analytics.zip`. Third-party packages are not
in it: every machine needs those of the extra `analytics`.
"""

from __future__ import annotations

import argparse
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parents[1]
# All of our modules that `analytics` may import.
PARTS: Final = (
    "analytics",
    "viewstamp/__init__.py",
    "viewstamp/limits.py",
    "viewstamp/api",
    "viewstamp/format",
    "viewstamp/telemetry",
)
SUFFIXES: Final = frozenset({".py", ".css", ".js"})
# The same code gives the same file, byte for byte. A zip cannot hold an earlier time than this.
WRITTEN: Final = (1980, 1, 1, 0, 0, 0)


def is_packed() -> bool:
    """Return whether this code was itself imported from such a file."""
    return not ROOT.is_dir()


def write_zip(path: Path) -> Path:
    """Write the code to a file; return it."""
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for source in sources():
            entry = zipfile.ZipInfo(source.relative_to(ROOT).as_posix(), WRITTEN)
            entry.compress_type = zipfile.ZIP_DEFLATED
            archive.writestr(entry, source.read_bytes())
    return path


def sources() -> Iterator[Path]:
    """Yield the files of the code, in a fixed order."""
    for part in PARTS:
        base = ROOT / part
        found = [base] if base.is_file() else sorted(base.rglob("*"))
        yield from (path for path in found if path.suffix in SUFFIXES and path.is_file())


def main(arguments: list[str] | None = None) -> int:
    """Write the file that is named on the command line."""
    parser = argparse.ArgumentParser(prog="python -m analytics.package", description=__doc__)
    parser.add_argument("path", type=Path, help="the file to write, ending in .zip")
    write_zip(parser.parse_args(arguments).path)
    return 0


if __name__ == "__main__":
    sys.exit(main())
