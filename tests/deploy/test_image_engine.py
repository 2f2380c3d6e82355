"""The commands for engines, and the base that Debian's packages make."""

from __future__ import annotations

from pathlib import Path

import pytest

from tools.image import __main__ as command
from tools.image.debian_root import PACKAGES, recipe, sources
from tools.image.engine import (
    PROGRAMS,
    Build,
    ImageError,
    authorities,
    build_command,
    find_program,
    run,
    save_command,
)

BUILD = Build(Path("/context"), Path("/Dockerfile"), "name:1", "target", {"BASE": "base"}, 7)


@pytest.mark.parametrize("program", PROGRAMS)
def test_every_engine_builds_the_target(program: str) -> None:
    """Each engine is given target, tag, base and time; the context is the last word."""
    words = build_command(program, BUILD, None)

    assert words[:2] == [program, "build"] and words[-1] == "/context"
    for flag, value in (
        ("--target", "target"),
        ("--tag", "name:1"),
        ("--file", "/Dockerfile"),
        ("--build-arg", "BASE=base"),
    ):
        assert words[words.index(flag) + 1] == value
    assert "SOURCE_DATE_EPOCH=7" in words


@pytest.mark.parametrize(("program", "mounted"), [("buildah", True), ("docker", False)])
def test_authorities_are_mounted_and_never_copied(program: str, mounted: bool) -> None:
    """A file of authorities of this machine is mounted into the build where an engine can."""
    words = build_command(program, BUILD, "/here/authorities.pem")

    assert any(word.startswith("/here/authorities.pem:") for word in words) is mounted
    assert any(word.startswith("PIP_CERT=") for word in words) is mounted


@pytest.mark.parametrize(
    ("environment", "found"),
    [
        ({}, None),
        ({"PIP_CERT": ""}, None),
        ({"SSL_CERT_FILE": "/two"}, "/two"),
        ({"PIP_CERT": "/one", "SSL_CERT_FILE": "/two"}, "/one"),
    ],
)
def test_authorities_come_from_the_environment(
    environment: dict[str, str], found: str | None
) -> None:
    """pip's own variable comes before the one of all programs."""
    assert authorities(environment) == found


@pytest.mark.parametrize("program", PROGRAMS)
def test_every_engine_saves_an_archive(program: str) -> None:
    """Each engine is told the image and the file."""
    words = " ".join(save_command(program, "name:1", Path("/out/name.tar")))

    assert "/out/name.tar" in words and "name:1" in words


def test_missing_engines_are_named() -> None:
    """Without an engine the error says what to install."""
    with pytest.raises(ImageError, match=r"no-such-engine.*install"):
        find_program("no-such-engine")


def test_failing_programs_are_named() -> None:
    """A program that fails, hangs or is missing is told with its name."""
    with pytest.raises(ImageError, match=r"false .*ended with 1"):
        run("false", "argument")
    with pytest.raises(ImageError, match="no-such-program is not there"):
        run("no-such-program")
    with pytest.raises(ImageError, match="did not end in 0 s"):
        run("sleep", "9", timeout_s=0)


def test_corrections_of_security_are_among_the_sources() -> None:
    """The mirror that debootstrap chose also has the release's updates and corrections."""
    lines = sources("deb http://mirror.example/debian bookworm main\n").splitlines()

    assert lines == [
        "deb http://mirror.example/debian bookworm main",
        "deb http://mirror.example/debian bookworm-updates main",
        "deb http://mirror.example/debian-security bookworm-security main",
    ]
    with pytest.raises(ImageError, match="no source of packages"):
        sources("")


def test_other_packages_make_another_root(monkeypatch: pytest.MonkeyPatch) -> None:
    """A root in the cache is not used for a recipe that it was not made by."""
    before = recipe()
    monkeypatch.setattr("tools.image.debian_root.PACKAGES", (*PACKAGES, "more"))

    assert recipe() != before


def test_unknown_images_are_usage_errors(capsys: pytest.CaptureFixture[str]) -> None:
    """A misspelt image is refused before anything is built, with the names that there are."""
    with pytest.raises(SystemExit):
        command.main(["viewstump"])

    assert "no such image: viewstump; there are viewstamp," in capsys.readouterr().err
