"""Copy what an image needs out of the file system that it was installed in; runs while it is built.

    python3.11 distil.py NAME TARGET

The base has a shell, a package manager and programs with privileges. An image is made of a list
of Debian packages, of the interpreter and of `/opt/viewstamp`: what is on no list is not in it. All
files have the time SOURCE_DATE_EPOCH. Standard library only, since bases have nothing else.
"""

from __future__ import annotations

import compileall
import os
import py_compile
import re
import shutil
import subprocess
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path, PurePosixPath
from typing import Final

# Shared libraries of the interpreter and of wheels, names of the system, authorities of the web.
_SYSTEM: Final = (
    "base-files ca-certificates gcc-12-base libc6 libgcc-s1 libstdc++6 zlib1g"
    " libbz2-1.0 libcrypt1 libffi8 liblzma5 libsqlite3-0 libssl3 libuuid1"
)
# Debian's interpreter. A base with its own one in /usr/local lacks these packages.
_INTERPRETER: Final = "libexpat1 libpython3.11-minimal libpython3.11-stdlib python3.11-minimal"
# Java, and what Spark's scripts and Hadoop's file system call: a shell, `chmod`, `ls`, `env`.
_JAVA: Final = (
    "openjdk-17-jre-headless java-common bash coreutils libacl1 libattr1 libgmp10 libpcre2-8-0"
    " libselinux1 libtinfo6"
)
PACKAGES: Final = {
    "viewstamp": _SYSTEM.split(),
    "viewstamp-client": _SYSTEM.split(),
    "viewstamp-analytics": f"{_SYSTEM} {_JAVA}".split(),
}
# Where packages may be missing, since the base has its own interpreter.
INTERPRETER: Final = _INTERPRETER.split()

# Parts of packages that no process reads. The licences in /usr/share/doc stay.
DROPPED: Final = (
    r"/usr/share/(man|info|locale|lintian|bug|bash-completion|debconf|menu|pixmaps|applications)/.*",
    r"/usr/share/doc/[^/]*/(?!copyright$).*",
    r"/usr/share/(base-files|ca-certificates)/.*",
    r"/(usr/)?sbin/.*",
    r"/usr/bin/(catchsegv|gencat|getconf|getent|iconv|ld\.so|ldd|locale|localedef|pldd|tzselect|zdump)",
    r"/usr/(local/)?lib(/.*)?/gconv/.*",
    r"/usr/lib/python3\.11/dist-packages/.*",
    r"/usr/(local/)?lib/python3\.11/(ensurepip|idlelib|lib2to3|pydoc_data|test|tkinter|turtledemo|venv)/.*",
    r"/usr/(local/)?lib/python3\.11/(unittest/test|distutils|config-[^/]*)/.*",
    # What would need the libraries of terminals and of old databases.
    r"/usr/(local/)?lib/python3\.11/lib-dynload/(_curses.*|_dbm|_gdbm|nis|readline|_tkinter|.*test.*|_?xx.*)\..*",
    r"/usr/local/lib/python3\.11/site-packages/.*",
    r"/usr/local/(include|share|src|etc|games|man|sbin)/.*",
    r"/usr/local/bin/(?!python3\.11$).*",
    r"/usr/lib/jvm/[^/]*/(man|docs|legal)/.*",
    r".*/(tests?|__pycache__)/.*",
    r".*/conftest\.py",
    r"/opt/viewstamp/bin/(activate.*|Activate\.ps1)",
    r"/opt/viewstamp/include/.*",
    r".*/site-packages/.*\.(a|c|cc|cpp|h|hpp|pxd|pxi|pyx)",
    r".*/site-packages/pyarrow/(include|src)/.*",
    r".*/site-packages/pyspark/(examples|data|sbin|licenses)/.*",
    r".*/site-packages/pyspark/bin/.*\.cmd",
    # Of Amazon's services an archive asks S3, and roles the others. Examples have keys in them.
    r".*/site-packages/botocore/data/(?!(?:s3|sts|sso|sso-oidc|signin)(?:/|$))[^/.]+(/.*)?",
    r".*/site-packages/botocore/data/.*/examples-\d+\.json",
    r".*/site-packages/boto3/examples(/.*)?",
    r".*/[^/]*\.(pyc|cmd|bat)",
)
# What the installation of packages made, and no package lists.
GENERATED: Final = ("/etc/ssl/certs/ca-certificates.crt", "/etc/ssl/certs/java/cacerts")
PROGRAMS: Final = ("/opt/viewstamp", "/usr/local")
# Owner of the only directory that processes of the image may write to, beside /tmp.
USER: Final = 10001
DIRECTORIES: Final = {
    # path: mode, owner
    "/dev": (0o755, 0),
    "/proc": (0o555, 0),
    "/sys": (0o555, 0),
    "/run": (0o755, 0),
    "/tmp": (0o1777, 0),
    "/var/lib/viewstamp": (0o750, USER),
}
FILES: Final = {
    "/etc/passwd": (
        "root:x:0:0:root:/nonexistent:/nonexistent\n"
        f"viewstamp:x:{USER}:{USER}:viewstamp:/var/lib/viewstamp:/nonexistent\n"
    ),
    "/etc/group": f"root:x:0:\nviewstamp:x:{USER}:\n",
    # Without it libc asks name servers before it reads /etc/hosts.
    "/etc/nsswitch.conf": "passwd: files\ngroup: files\nhosts: files dns\n",
}
# One path for every processor's Java.
JAVA_HOME: Final = "/opt/java"
STATUS: Final = Path("/var/lib/dpkg/status")
LISTS: Final = Path("/var/lib/dpkg/info")
# In a directory, each package in a file: scanners of images read it, and dpkg does not run here.
STATUS_DIRECTORY: Final = "/var/lib/dpkg/status.d"

_DROPPED: Final = re.compile("|".join(f"(?:{pattern})" for pattern in DROPPED))


class DistilError(Exception):
    """The file system lacks what the image needs."""


def is_dropped(path: str) -> bool:
    """Return whether a path stays behind, although something on a list brought it."""
    return _DROPPED.fullmatch(path) is not None


def stanzas(status: str) -> dict[str, str]:
    """Return dpkg's entry of each installed package, by its name."""
    found = {}
    for entry in status.strip().split("\n\n"):
        fields = dict(
            line.split(": ", 1) for line in entry.splitlines() if re.match(r"\w.*: ", line)
        )
        if fields.get("Status") == "install ok installed":
            found[fields["Package"]] = entry + "\n"
    return found


def chosen(name: str, installed: Iterable[str]) -> list[str]:
    """Return the packages of an image. Raises DistilError if one of them is not installed."""
    there = set(installed)
    interpreter = [package for package in INTERPRETER if package in there]
    wanted = [*PACKAGES[name], *interpreter]
    missing = sorted(set(wanted) - there)
    if missing:
        raise DistilError(f"the base lacks {', '.join(missing)}: install them in its stage")
    if not interpreter and not Path("/usr/local/bin/python3.11").exists():
        raise DistilError("the base lacks Python 3.11: neither Debian's nor one in /usr/local")
    return sorted(wanted)


def listed(package: str) -> list[str]:
    """Return the paths of an installed package. Raises DistilError if dpkg has no list of them."""
    found = [*LISTS.glob(f"{package}.list"), *LISTS.glob(f"{package}:*.list")]
    if len(found) != 1:
        raise DistilError(f"{LISTS} has {len(found)} lists of {package}, and not one")
    return [line for line in found[0].read_text().splitlines() if line != "/."]


def below(directory: str) -> Iterator[str]:
    """Yield the paths below a directory, and the directory itself, each before its content."""
    yield directory
    for parent, directories, files in os.walk(directory):
        for name in sorted((*directories, *files)):
            yield str(Path(parent, name))


def place(path: str, target: Path) -> Path:
    """Return where a path lies in the image: /lib is a link to /usr/lib, and packages use both."""
    source = PurePosixPath(path)
    return target / str(Path(source.parent).resolve() / source.name).lstrip("/")


def copy(path: str, target: Path) -> None:
    """Copy a path; a directory without its content. What is there already stays."""
    source, copied = Path(path), place(path, target)
    if os.path.lexists(copied):
        return
    copied.parent.mkdir(parents=True, exist_ok=True)
    if source.is_symlink():
        copied.symlink_to(source.readlink())
    elif source.is_dir():
        copied.mkdir()
        copied.chmod(source.stat().st_mode & 0o755)
    else:
        shutil.copyfile(source, copied)
        copied.chmod(source.stat().st_mode & 0o755)


def write(path: str, text: str, target: Path) -> None:
    """Write a file of the image that everybody may read."""
    file = target / path.lstrip("/")
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text)
    file.chmod(0o644)


def compile_sources(target: Path) -> None:
    """Write byte code that is never compared with its source: nobody can change it there.

    Raises DistilError if a source does not compile.
    """
    for directory in ("usr/lib/python3.11", "usr/local/lib/python3.11", "opt/viewstamp/lib"):
        if (target / directory).is_dir() and not compileall.compile_dir(
            target / directory,
            maxlevels=64,
            quiet=1,
            stripdir=str(target),
            prependdir="/",
            invalidation_mode=py_compile.PycInvalidationMode.UNCHECKED_HASH,
        ):
            raise DistilError(f"a source in /{directory} does not compile")


def remove_empty(target: Path) -> None:
    """Remove directories whose content was left behind."""
    for parent, _, _ in os.walk(target, topdown=False):
        if not any(Path(parent).iterdir()):
            Path(parent).rmdir()


def settle(target: Path, seconds: int) -> None:
    """Give every path one time, in seconds, so that two builds are the same bytes."""
    for path in below(str(target)):
        os.utime(path, (seconds, seconds), follow_symlinks=False)


def copy_chosen(packages: Iterable[str], target: Path) -> None:
    """Copy what packages, programs and their installation brought, but not what is dropped."""
    links = (f"/{path.name}" for path in sorted(Path("/").iterdir()) if path.is_symlink())
    paths = (path for package in packages for path in listed(package))
    programs = (path for root in PROGRAMS for path in below(root))
    # Links such as /lib come first: what is below them has to be put where they lead to.
    for path in (*links, *paths, *programs, *GENERATED):
        if os.path.lexists(path) and not is_dropped(path):
            copy(path, target)


def add_own(entries: dict[str, str], packages: Iterable[str], target: Path) -> None:
    """Add what no package brings: accounts, places to write, a name for Java, dpkg's entries."""
    for path, text in FILES.items():
        write(path, text, target)
    for package in packages:
        write(f"{STATUS_DIRECTORY}/{package}", entries[package], target)
    for path, (mode, owner) in DIRECTORIES.items():
        directory = target / path.lstrip("/")
        directory.mkdir(parents=True, exist_ok=True)
        directory.chmod(mode)
        os.chown(directory, owner, owner)
    for home in Path("/usr/lib/jvm").glob("java-17-openjdk-*"):
        (target / JAVA_HOME.lstrip("/")).symlink_to(home)


def distil(name: str, target: Path, seconds: int) -> None:
    """Make the file system of an image. Raises DistilError, OSError, CalledProcessError."""
    entries = stanzas(STATUS.read_text())
    packages = chosen(name, entries)
    copy_chosen(packages, target)
    remove_empty(target)
    compile_sources(target)
    add_own(entries, packages, target)
    # An interpreter in /usr/local has its library where only this cache finds it.
    subprocess.run(["ldconfig", "-X", "-r", str(target)], check=True)
    shutil.rmtree(target / "var/cache", ignore_errors=True)
    settle(target, seconds)


def main() -> int:
    """Return the exit code: 0, or 1 if the base lacks something."""
    name, target = sys.argv[1:]
    try:
        distil(name, Path(target), int(os.environ.get("SOURCE_DATE_EPOCH", "0")))
    except DistilError as error:
        print(f"distil: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
