"""Real builds are found in the history by their content, whatever the hashes of commits."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from typing import Final

import pytest

from tests.replicas.real_builds import LIMITS, PACKAGES, files_with, find_pair, write_tree

FIRST: Final = "FIRST: Final"
SECOND: Final = "SECOND: Final"
BROUGHT: Final = f"{FIRST} = 1\n{SECOND} = 2\n"
# The limits of one commit after another, None for no limits: both lines come in one commit.
HISTORY: Final = (None, BROUGHT, f"{FIRST} = 1\n")


@pytest.fixture(autouse=True)
def _git_by_itself(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Keep git to the directory of the test, without the settings of whoever runs it."""
    for name in [name for name in os.environ if name.startswith("GIT_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", os.devnull)
    monkeypatch.setenv("GIT_CONFIG_NOSYSTEM", "1")
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path.parent))


def _git(repository: Path, *words: str) -> str:
    """Run git; return what it wrote."""
    who = ("-c", "user.name=test", "-c", "user.email=test@localhost")
    command = ["git", "-C", str(repository), *who, *words]
    return subprocess.run(command, capture_output=True, check=True, text=True).stdout.strip()


def _commit(repository: Path, limits: str | None) -> str:
    """Commit packages with these limits; return the commit."""
    for package in PACKAGES:
        (repository / package).mkdir(exist_ok=True)
        (repository / package / "__init__.py").touch()
    if limits is not None:
        (repository / LIMITS).write_text(limits)
    _git(repository, "add", ".")
    _git(repository, "commit", "--quiet", "--message", "next")
    return _git(repository, "rev-parse", "HEAD")


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    """A repository where one commit added both lines, and the next one removed the second."""
    made = tmp_path / "repository"
    made.mkdir()
    _git(made, "init", "--quiet")
    for limits in HISTORY:
        _commit(made, limits)
    return made


def test_the_commit_that_brought_a_line_is_found(repository: Path) -> None:
    """The right commit is the first that adds the line to the other; later changes do not count."""
    old = _git(repository, "rev-parse", "HEAD")
    new = _commit(repository, BROUGHT)
    _commit(repository, "")
    _commit(repository, f"{FIRST} = 3\n")
    _commit(repository, f"{FIRST} = 3\n{SECOND} = 4\n")
    assert find_pair(repository, SECOND, FIRST) == (old, new)


def test_trees_are_those_of_their_commits(repository: Path, tmp_path: Path) -> None:
    """Each tree has the files of its commit, and a search for words finds the files with them."""
    _commit(repository, BROUGHT)
    pair = find_pair(repository, SECOND, FIRST)
    old = write_tree(repository, pair.old, tmp_path / "old")
    new = write_tree(repository, pair.new, tmp_path / "new")
    assert (files_with(old, SECOND), files_with(new, SECOND)) == ([], [LIMITS])


def test_a_history_without_the_two_is_named(repository: Path) -> None:
    """If one commit adds both lines, there is no commit between them to compare with."""
    with pytest.raises(pytest.fail.Exception, match=r"no commit brought `SECOND.*unshallow"):
        find_pair(repository, SECOND, FIRST)


def test_a_shallow_clone_is_told_to_fetch(repository: Path, tmp_path: Path) -> None:
    """In a shallow clone each line looks new: that is no pair, and the error says what to do."""
    _commit(repository, BROUGHT)
    shallow = tmp_path / "shallow"
    _git(tmp_path, "clone", "--quiet", "--depth=1", repository.as_uri(), str(shallow))
    with pytest.raises(pytest.fail.Exception, match="git fetch --unshallow"):
        find_pair(shallow, SECOND, FIRST)


def test_where_there_is_no_repository_git_is_quoted(tmp_path: Path) -> None:
    """An unpacked archive has no history at all, and the error quotes git."""
    with pytest.raises(pytest.fail.Exception, match=r"git log in .* failed: .*unshallow"):
        find_pair(tmp_path, SECOND, FIRST)
