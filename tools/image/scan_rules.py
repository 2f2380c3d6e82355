"""What an image must not hold: a table of rules, and the few exceptions of one image."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, TypeAlias

from tools.image.image_archive import ImageFile

Test: TypeAlias = Callable[[ImageFile], bool]

# The one account, beside root, to which something belongs: the directory for data.
USER: Final = 10001
DATA_DIRECTORY: Final = "/var/lib/viewstamp"
TEMPORARY_DIRECTORY: Final = "/tmp"
SET_ID_BITS: Final = 0o6000
STICKY_BIT: Final = 0o1000
WRITABLE_BY_ALL: Final = 0o002


@dataclass(frozen=True, slots=True)
class Rule:
    """What is refused, what to do about it, and how it is recognized."""

    name: str
    remedy: str
    refuses: Test


def _path(pattern: str) -> Test:
    """Return a test for paths that a pattern matches completely."""
    compiled = re.compile(pattern)
    return lambda file: compiled.fullmatch(file.path) is not None


def _program(names: str) -> Test:
    """Return a test for programs with one of these names, whatever version follows."""
    alternatives = "|".join(map(re.escape, names.split()))
    return _path(rf"/(.*/)?s?bin/({alternatives})(-?[0-9.]+)?")


def _content(pattern: bytes) -> Test:
    """Return a test for files whose content a pattern is found in."""
    compiled = re.compile(pattern)
    return lambda file: compiled.search(file.content) is not None


def _has_set_id(file: ImageFile) -> bool:
    return file.kind != "link" and bool(file.mode & SET_ID_BITS)


def _all_may_write(file: ImageFile) -> bool:
    shared = file.path == TEMPORARY_DIRECTORY and bool(file.mode & STICKY_BIT)
    return file.kind != "link" and bool(file.mode & WRITABLE_BY_ALL) and not shared


def _is_not_roots(file: ImageFile) -> bool:
    owner = USER if file.path == DATA_DIRECTORY else 0
    return (file.owner, file.group) != (owner, owner)


RULES: Final = (
    Rule(
        "private key",
        "mount it when the container starts",
        # With the line of its body: code that looks for keys names the first line, too.
        _content(rb"-----BEGIN ([A-Z]+ )?PRIVATE KEY-----\r?\n[A-Za-z0-9+/=:, -]{16,}\r?\n"),
    ),
    Rule(
        "secret by its name",
        "mount it when the container starts",
        _path(
            r".*/([^/]*\.key|[^/]*\.p12|[^/]*\.jks|id_(rsa|ed25519|ecdsa)|\.env|\.netrc|\.pypirc"
            r"|\.git-credentials|pip\.conf|root_password|authorities\.pem)"
        ),
    ),
    Rule(
        "token by its shape",
        "remove it, and revoke it",
        _content(
            rb"\b(AKIA[0-9A-Z]{16}|gh[opsu]_[A-Za-z0-9]{36}|xox[bp]-[0-9]{8,}-[0-9A-Za-z-]+)\b"
        ),
    ),
    Rule("set-id bit", "take the bit away", _has_set_id),
    Rule("capabilities of a file", "take them away", lambda file: file.has_capabilities),
    Rule("writable by all", "take the bit away", _all_may_write),
    Rule("not root's", "give it to root", _is_not_roots),
    Rule("device", "leave it out", lambda file: file.kind == "device"),
    Rule(
        "compiler",
        "build in a stage of its own",
        _program("gcc g++ cc c++ cpp clang ld as make cmake javac go rustc cargo tcc"),
    ),
    Rule(
        "package manager",
        "install in a stage of its own",
        _program("apt apt-get dpkg dpkg-deb rpm apk pip pip3 uv conda npm easy_install gem"),
    ),
    Rule(
        "builder of packages",
        "uninstall it in the stage that installs",
        _path(
            r".*/(site|dist)-packages/(pip|setuptools|wheel|hatchling|editables|_distutils_hack)"
        ),
    ),
    Rule(
        "way to fetch programs",
        "leave the package out",
        _program("curl wget nc ncat socat ssh git"),
    ),
    Rule(
        "shell",
        "leave the package out",
        _program("sh ash bash dash zsh ksh csh tcsh fish busybox toybox"),
    ),
    Rule(
        "debugger or spy",
        "leave the package out",
        _program("gdb strace ltrace tcpdump nmap perf"),
    ),
    Rule(
        "list of a package manager",
        "leave it out",
        _path(r"/var/(lib|cache)/apt(/.*)?|/var/lib/dpkg/(status|available|info|triggers)(/.*)?"),
    ),
    Rule(
        "test",
        "add its place to what is dropped",
        _path(r"(?!/usr/bin/).*/tests?(/.*)?|.*/conftest\.py"),
    ),
    Rule(
        "checkout",
        "narrow what is copied",
        _path(r".*/\.(git|hg|svn|github|ci|vscode|idea)(/.*)?|/build(/.*)?|.*/Makefile"),
    ),
    Rule(
        "cache",
        "remove it in the stage that made it",
        _path(
            r".*/\.(cache|mypy_cache|pytest_cache|ruff_cache|hypothesis|npm|m2)(/.*)?|/var/cache/.*"
        ),
    ),
    Rule(
        "manual or translation",
        "add its place to what is dropped",
        _path(r"/usr/(local/)?share/(man|info|locale)/.*"),
    ),
    Rule("log", "remove it in the stage that made it", _path(r"/var/log/.*")),
    Rule(
        "removal",
        "do not copy it: the layer below still holds what this removes",
        _path(r".*/\.wh\.[^/]+"),
    ),
)

# An image's name -> rules and the paths for which they do not hold, with the reason.
EXCEPTIONS: Final[dict[str, dict[str, frozenset[str]]]] = {
    # Spark's scripts, with which PySpark starts Java, are written for this shell.
    "viewstamp-analytics": {"shell": frozenset({"/usr/bin/bash"})},
}
