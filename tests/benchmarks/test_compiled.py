"""What is compiled for a comparison is the package it names, and trouble with that is told."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks import compiled
from benchmarks.builds import TREE
from benchmarks.compiled import LEFT_OUT, PACKAGE, compile_in, modules


def test_all_modules_but_those_left_out_are_compiled() -> None:
    """A module that comes later is compiled, too, and one that is left out is there."""
    names = {path.name for path in (TREE / PACKAGE).glob("*.py")}
    assert names > LEFT_OUT
    assert {path.name for path in modules(TREE)} == names - LEFT_OUT
    assert all(path.parent == PACKAGE for path in modules(TREE))


def test_a_machine_without_a_compiler_is_told_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The error says what to install."""
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(RuntimeError, match=f"install one of {compiled.COMPILERS[0]}"):
        compile_in(tmp_path)


def test_what_the_compiler_says_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A tree that cannot be compiled is an error with the compiler's own words."""
    monkeypatch.setattr(compiled, "COMPILERS", ("sh",))
    (tmp_path / PACKAGE).mkdir(parents=True)
    (tmp_path / PACKAGE / "wrong.py").write_text('number: int = "a text"\n')
    with pytest.raises(RuntimeError, match="Incompatible types in assignment"):
        compile_in(tmp_path)
