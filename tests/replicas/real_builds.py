"""Real builds of the past: found in the history by what they hold, and written out as they were.

Hashes of commits change when a history is written anew; what a commit brought does not.
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
# The exit code of `git grep` where no line fits.
NOTHING_FOUND: Final = 1
ADVICE: Final = "run the test in a git clone with its whole history (`git fetch --unshallow`)"


class BuildPair(NamedTuple):
    """Two commits, one right after the other."""

    old: str
    new: str


def find_pair(repository: Path, brought: str, known: str) -> BuildPair:
    """Return the first commit whose limits have `brought`, and its parent, which has but `known`.

    Fails the test if the history does not have the two.
    """
    found = _git(repository, "log", "--reverse", "--format=%H %P", f"-S{brought}", "--", LIMITS)
    # What git finds has `brought` more often than its parent, or less often. A root has no parent.
    for new, *parents in map(str.split, found.decode().splitlines()):
        for old in parents[:1]:
            if _has(repository, old, known) and not _has(repository, old, brought):
                return BuildPair(old, new)
    pytest.fail(
        f"no commit brought `{brought}` to {LIMITS} on top of one that had `{known}` there;"
        f" {ADVICE}"
    )


def write_tree(repository: Path, commit: str, directory: Path) -> Path:
    """Write the packages of a commit into a directory that is not there; return it."""
    archive = _git(repository, "archive", commit, *PACKAGES)
    with tarfile.open(fileobj=io.BytesIO(archive)) as packed:
        packed.extractall(directory, filter="data")
    return directory


def files_with(tree: Path, words: str) -> list[str]:
    """Return which sources of a tree have these words in them, whether written or generated."""
    sources = sorted(tree.rglob("*.py"))
    assert sources, f"there is no Python in {tree}"
    return [str(path.relative_to(tree)) for path in sources if words in path.read_text("utf-8")]


def _has(repository: Path, commit: str, words: str) -> bool:
    """Whether the limits of a commit have these words in them; false if it has no limits."""
    search = ("grep", "--fixed-strings", "-e", words, commit, "--", LIMITS)
    return bool(_git(repository, *search, fine=(0, NOTHING_FOUND)))


def _git(repository: Path, *words: str, fine: tuple[int, ...] = (0,)) -> bytes:
    """Return what a git command wrote. Fails the test if its exit code is not fine."""
    done = subprocess.run(["git", "-C", str(repository), *words], capture_output=True, check=False)
    if done.returncode not in fine:
        said = done.stderr.decode(errors="replace").strip()
        pytest.fail(f"git {words[0]} in {repository} failed: {said}; {ADVICE}")
    return done.stdout
