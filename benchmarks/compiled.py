"""Compiles the pure HTTP/2 package of a tree by mypyc, to measure what that would gain (ADR 30).

`python -m benchmarks.compiled` compiles in the present directory; `benchmarks.builds --compiled`
does so in a tree of its own. It needs a C compiler and Python's headers. The modules keep their
sources beside them, and Python prefers what was compiled.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from mypyc.build import mypycify
from setuptools import setup

PACKAGE: Final = Path("viewstamp/http2")
# A package stays as it is, and sections copy themselves without the constructor, which compiled
# classes cannot.
LEFT_OUT: Final = frozenset({"__init__.py", "fields.py"})
COMPILERS: Final = ("cc", "gcc", "clang")
OPTIMIZATION: Final = "3"


def modules(tree: Path) -> list[Path]:
    """Return the modules that are compiled, relative to the tree."""
    found = sorted((tree / PACKAGE).glob("*.py"))
    return [path.relative_to(tree) for path in found if path.name not in LEFT_OUT]


def compile_in(tree: Path) -> None:
    """Compile a tree in a process of its own. Raises RuntimeError with what the compiler said."""
    if not any(map(shutil.which, COMPILERS)):
        raise RuntimeError(f"no C compiler: install one of {', '.join(COMPILERS)}")
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.compiled"],
        cwd=tree,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    if done.returncode:
        raise RuntimeError(f"compiling {PACKAGE} failed:\n{done.stdout}")


def main(paths: Sequence[Path]) -> int:
    """Compile these modules of the present directory, beside their sources."""
    extensions = mypycify([str(path) for path in paths], opt_level=OPTIMIZATION)
    setup(
        name="viewstamp-compiled",
        packages=[],
        py_modules=[],
        ext_modules=extensions,
        script_name="compiled",
        script_args=["build_ext", "--inplace"],
    )
    return 0


if __name__ == "__main__":
    sys.exit(main(modules(Path.cwd())))
