"""What is taken out of the base, and what is left behind there."""

from __future__ import annotations

import os
from importlib import metadata
from pathlib import Path

import pytest

from tests.deploy.dockerfile import parse, stages
from tests.deploy.planted_image import STATUS
from tests.deploy.pod import ROOT
from tools.image import __main__ as command
from tools.image.distil import (
    INTERPRETER,
    PACKAGES,
    DistilError,
    chosen,
    compile_sources,
    is_dropped,
    remove_empty,
    settle,
    stanzas,
)
from tools.image.image_archive import ImageFile
from tools.image.scan import refused_files

LIBRARY = "/usr/lib/python3.11"
SITE = "/opt/viewstamp/lib/python3.11/site-packages"


@pytest.mark.parametrize(
    ("path", "dropped"),
    [
        ("/usr/share/man/man1/bash.1.gz", True),
        ("/usr/share/doc/libc6/changelog.Debian.gz", True),
        ("/usr/share/doc/libc6/copyright", False),
        ("/usr/share/doc/libc6", False),
        ("/usr/sbin/ldconfig", True),
        ("/sbin/ldconfig", True),
        ("/usr/bin/ldd", True),
        ("/usr/bin/python3.11", False),
        (f"{LIBRARY}/ensurepip/__init__.py", True),
        (f"{LIBRARY}/test/support/__init__.py", True),
        (f"{LIBRARY}/lib-dynload/_curses.cpython-311-x86_64-linux-gnu.so", True),
        (f"{LIBRARY}/lib-dynload/_sqlite3.cpython-311-x86_64-linux-gnu.so", False),
        (f"{LIBRARY}/unittest/mock.py", False),
        ("/usr/local/bin/python3.11", False),
        ("/usr/local/bin/pip3", True),
        ("/usr/local/lib/python3.11/site-packages/pip/__init__.py", True),
        (f"{SITE}/pandas/tests/test_api.py", True),
        (f"{SITE}/pandas/testing.py", False),
        (f"{SITE}/pandas/conftest.py", True),
        (f"{SITE}/pyarrow/include/arrow/api.h", True),
        (f"{SITE}/rich/__pycache__/box.cpython-311.pyc", True),
        (f"{SITE}/pyspark/bin/spark-submit", False),
        ("/opt/viewstamp/bin/activate", True),
        ("/opt/viewstamp/bin/viewstamp", False),
        (f"{SITE}/botocore/data/s3/2006-03-01/service-2.json.gz", False),
        (f"{SITE}/botocore/data/sts", False),
        (f"{SITE}/botocore/data/endpoints.json", False),
        (f"{SITE}/botocore/data/s3control", True),
        (f"{SITE}/botocore/data/ec2/2016-11-15/service-2.json.gz", True),
        (f"{SITE}/botocore/data/sts/2011-06-15/examples-1.json", True),
        (f"{SITE}/boto3/examples/cloudfront.rst", True),
        (f"{SITE}/boto3/session.py", False),
    ],
)
def test_what_is_dropped(path: str, dropped: bool) -> None:
    """Manuals, package managers, headers and tests stay behind; licences and programs do not."""
    assert is_dropped(path) is dropped


@pytest.mark.parametrize("library", ["boto3", "botocore", "s3transfer", "cryptography"])
def test_libraries_of_archives_pass_the_rules(library: str) -> None:
    """What an image gets of them has no rule against it, examples with keys for instance."""
    found = [
        (f"{SITE}/{file}", Path(str(file.locate())).read_bytes())
        for file in metadata.files(library) or ()
        if Path(str(file.locate())).is_file()
    ]
    files = [
        ImageFile(path, "file", 0o644, 0, 0, len(content), content)
        for path, content in found
        if not is_dropped(path)
    ]

    assert len(files) > 5
    assert list(refused_files("viewstamp", files)) == []


def test_installed_packages_are_read() -> None:
    """Only packages that are installed count; their entries keep all fields."""
    removed = "\nPackage: apt\nStatus: deinstall ok config-files\nVersion: 2.6\n"

    assert stanzas(STATUS.decode() + removed) == {"libc6": STATUS.decode()}


def test_missing_packages_are_named() -> None:
    """A base without a package that an image needs is refused by the package's name."""
    there = {*PACKAGES["viewstamp"], *INTERPRETER} - {"libssl3"}

    with pytest.raises(DistilError, match="lacks libssl3"):
        chosen("viewstamp", there)


def test_the_interpreter_is_debians_where_it_is_there() -> None:
    """Debian's interpreter is among the packages of an image if the base has it."""
    assert set(INTERPRETER) <= set(chosen("viewstamp", [*PACKAGES["viewstamp"], *INTERPRETER]))


def test_every_image_has_packages_a_lock_and_a_target() -> None:
    """The tool, the list of packages and the Dockerfile know the same images."""
    names = {stage.name for stage in stages(parse((ROOT / "deploy/Dockerfile").read_text()))}

    assert PACKAGES.keys() == command.LOCKS.keys()
    assert PACKAGES.keys() <= names


def test_byte_code_needs_no_look_at_its_source(tmp_path: Path) -> None:
    """Byte code is marked unchecked, names the path in the image, and two runs are equal."""
    module = tmp_path / "opt/viewstamp/lib/module.py"
    module.parent.mkdir(parents=True)
    module.write_text("def twice(number):\n    return 2 * number\n")

    compile_sources(tmp_path)
    (compiled,) = module.parent.glob("__pycache__/*.pyc")
    first = compiled.read_bytes()
    compile_sources(tmp_path)

    assert first[4:8] == b"\x01\x00\x00\x00"
    assert b"/opt/viewstamp/lib/module.py" in first
    assert str(tmp_path).encode() not in first
    assert compiled.read_bytes() == first


def test_sources_that_do_not_compile_are_refused(tmp_path: Path) -> None:
    """A broken module is found while the image is built, and not when it runs."""
    module = tmp_path / "opt/viewstamp/lib/module.py"
    module.parent.mkdir(parents=True)
    module.write_text("def:\n")

    with pytest.raises(DistilError, match="does not compile"):
        compile_sources(tmp_path)


def test_empty_directories_go_and_times_are_one(tmp_path: Path) -> None:
    """Directories whose content stayed behind are removed, and every path gets one time."""
    (tmp_path / "a/b/c").mkdir(parents=True)
    (tmp_path / "kept").mkdir()
    (tmp_path / "kept/file").write_text("")
    (tmp_path / "kept/link").symlink_to("nowhere")

    remove_empty(tmp_path)
    settle(tmp_path, 1_700_000_000)

    left = sorted(str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*"))
    assert left == ["kept", "kept/file", "kept/link"]
    times = {os.lstat(path).st_mtime for path in tmp_path.rglob("*")}
    assert times == {1_700_000_000}
