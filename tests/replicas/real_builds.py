"""Real builds of the past: found in the history by their content, and written out unchanged.

A rewritten history has other hashes of commits, and the same content.
"""

from __future__ import annotations

import io
import subprocess
import tarfile
from pathlib import Path
from typing import Final, NamedTuple

import pytest

LIMITS: Final = "viewstamp/limits.py"
PACKAGES: Final = ("coordinator", "services", "viewstamp")
# The exit code of `git grep` without a match.
NOTHING_FOUND: Final = 1
ADVICE: Final = "run the test in a git clone with its whole history (`git fetch --unshallow`)"


class BuildPair(NamedTuple):
    """Two commits, a parent and its child."""

    old: str
    new: str


def find_pair(repository: Path, brought: str, known: str) -> BuildPair:
    """Return the first commit that adds `brought` to limits that have `known`, and its parent.

    Fails the test if the history does not have the two.
    """
    found = _git(repository, "log", "--reverse", "--format=%H %P", f"-S{brought}", "--", LIMITS)
    # A commit that git finds adds or removes `brought`. A root has no parent.
    for new, *parents in map(str.split, found.decode().splitlines()):
        for old in parents[:1]:
            if _has(repository, old, known) and not _has(repository, old, brought):
                return BuildPair(old, new)
    pytest.fail(
        f"no commit brought `{brought}` to {LIMITS} on top of one that had `{known}` there;"
        f" {ADVICE}"
    )


def write_tree(repository: Path, commit: str, directory: Path) -> Path:
    """Write the packages of a commit into a new directory; return it."""
    archive = _git(repository, "archive", commit, *PACKAGES)
    with tarfile.open(fileobj=io.BytesIO(archive)) as packed:
        packed.extractall(directory, filter="data")
    return directory


def files_with(tree: Path, words: str) -> list[str]:
    """Return the sources of a tree that contain these words, whether written or generated."""
    sources = sorted(tree.rglob("*.py"))
    assert sources, f"there is no Python in {tree}"
    return [str(path.relative_to(tree)) for path in sources if words in path.read_text("utf-8")]


def _has(repository: Path, commit: str, words: str) -> bool:
    """Whether the limits of a commit contain these words; false if it has no limits."""
    search = ("grep", "--fixed-strings", "-e", words, commit, "--", LIMITS)
    return bool(_git(repository, *search, fine=(0, NOTHING_FOUND)))


def _git(repository: Path, *words: str, fine: tuple[int, ...] = (0,)) -> bytes:
    """Return the output of a git command. Fails the test if its exit code is not fine."""
    done = subprocess.run(["git", "-C", str(repository), *words], capture_output=True, check=False)
    if done.returncode not in fine:
        said = done.stderr.decode(errors="replace").strip()
        pytest.fail(f"git {words[0]} in {repository} failed: {said}; {ADVICE}")
    return done.stdout
