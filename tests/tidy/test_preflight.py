"""The checks that run before any environment exists: each failure is one line with a remedy."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from tools import preflight


@pytest.mark.parametrize(
    ("version", "missing", "remedies"),
    [
        ((3, 11), [], []),
        ((3, 14), [], []),
        ((3, 10), [], ["`python3`"]),
        ((3, 11), ["ensurepip"], ["`python3-venv`"]),
        ((3, 9), ["venv", "ensurepip"], ["`python3`", "`python3-venv`"]),
    ],
)
def test_python(version: tuple[int, int], missing: list[str], remedies: list[str]) -> None:
    """An old Python and a Python without venv have different messages, each with its package."""
    lines = preflight.check_python(version, missing)
    assert len(lines) == len(remedies)
    assert all(remedy in line for remedy, line in zip(remedies, lines, strict=True))


def test_disk() -> None:
    """Exactly enough space passes; one byte less is reported with both numbers."""
    assert preflight.check_disk(5000, 5000, Path("x")) == []
    (line,) = preflight.check_disk(4999, 5000, Path("x"))
    assert "4,999" in line
    assert "5,000" in line


def test_port() -> None:
    """A port that something listens on is reported; the same port passes afterwards."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        port: int = listener.getsockname()[1]
        (line,) = preflight.check_port(port)
        assert str(port) in line
    assert preflight.check_port(port) == []


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ('openjdk version "17.0.9" 2023-10-17', None),
        ('openjdk version "21" 2023-09-19', None),
        ('java version "1.8.0_382"', "too old"),
        ("no version here", "cannot be read"),
        (None, "missing"),
    ],
)
def test_java(text: str | None, complaint: str | None) -> None:
    """A missing, old or unreadable Java is reported with the package to install."""
    lines = preflight.check_java(text)
    assert len(lines) == (complaint is not None)
    assert all(str(complaint) in line and "openjdk-17-jre" in line for line in lines)


def test_programs_of_the_tests() -> None:
    """Each program that is missing is reported with its package; what is there is not."""
    (line,) = preflight.check_programs({"chromium": "/usr/bin/chromium", "promtool": None})
    assert line == "promtool is missing: install the Debian package `prometheus`"


def test_misses_are_single_lines(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each failure is one line on standard error, and the exit status is not 0."""
    monkeypatch.setattr(preflight, "missing_modules", lambda: ["venv"])
    monkeypatch.setattr(preflight, "java_version", lambda: None)
    monkeypatch.setattr(preflight, "DISK_FREE_MIN_BYTES", {"dev": 0})
    monkeypatch.setattr(preflight, "programs", lambda: dict.fromkeys(("chromium", "promtool")))
    assert preflight.main(["dev", "--java"]) == 1
    assert len(capsys.readouterr().err.splitlines()) == 2
    assert preflight.main(["dev", "--tests"]) == 1
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 4
    assert all(line.startswith("preflight: ") for line in lines)


def test_fit_machine_is_silent(capsys: pytest.CaptureFixture[str]) -> None:
    """The machine that runs this test passes for the runtime, without output."""
    assert preflight.main(["runtime"]) == 0
    assert capsys.readouterr().err == ""
