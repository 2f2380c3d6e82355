"""The documentation site builds without warnings, loads nothing from elsewhere, has every RPC."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

from google.protobuf.descriptor_pb2 import FileDescriptorSet

from tests.tidy import proto_rules
from tests.tidy.tree import ROOT
from tools import api_reference, generate

# A browser fetches these by itself when it opens a page.
FETCHED = re.compile(r'(?:src="|<link[^>]*href=")((?:https?:)?//[^"]*)"')


def build(site: Path, config: Path = ROOT / "mkdocs.yml") -> str:
    """Build the site as `make docs` does and return its warnings; `--quiet` would hide them."""
    command = [sys.executable, "-m", "mkdocs", "build", "--strict"]
    done = subprocess.run(
        [*command, "--config-file", config, "--site-dir", site],
        env={**os.environ, "PYTHONPATH": str(ROOT), "NO_MKDOCS_2_WARNING": "1"},
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    said = [line for line in (done.stdout + done.stderr).splitlines() if "INFO " not in line]
    assert (done.returncode == 0) == (said == []), done.stderr
    return "\n".join(said)


def test_site_builds_without_a_warning(tmp_path: Path) -> None:
    """`make docs` is silent, and no page makes a browser load something from another server."""
    assert build(tmp_path / "site") == ""
    pages = list((tmp_path / "site").rglob("*.html"))
    assert len(pages) > 40
    assert [found for page in pages for found in FETCHED.findall(page.read_text())] == []


def test_broken_links_fail_the_build(tmp_path: Path) -> None:
    """A link to a page, anchor or file that does not exist ends the build, which names the link."""
    shutil.copytree(ROOT / "docs", tmp_path / "docs")
    page = tmp_path / "docs" / "limits.md"
    page.write_text(page.read_text() + "\n[a](nowhere.md) [b](vsr.md#nowhere) [c](../nowhere.py)\n")
    config = tmp_path / "mkdocs.yml"
    hooks = ROOT / "tools" / "site_hooks.py"
    config.write_text(
        f"INHERIT: {ROOT / 'mkdocs.yml'}\ndocs_dir: {tmp_path / 'docs'}\nhooks: [{hooks}]\n"
    )
    said = build(tmp_path / "site", config)
    assert all(name in said for name in ("nowhere.md", "vsr.md#nowhere", "../nowhere.py"))


def test_reference_has_every_method_with_its_comment() -> None:
    """The API reference has each RPC of the protos, its code and its text; an omission is found."""
    files = generate.descriptor_set(ROOT / "protos")
    assert missing(files, "\n".join(api_reference.pages(files).values())) == []
    (watch,) = [file for file in files.file if file.package == "viewstamp.api.watch.v1"]
    del watch.service[:]
    all_files = generate.descriptor_set(ROOT / "protos")
    left_out = missing(all_files, "\n".join(api_reference.pages(files).values()))
    assert left_out == ["viewstamp.api.watch.v1.WatchService.Watch"]


def missing(files: FileDescriptorSet, text: str) -> list[str]:
    """Return the methods without a heading, or without their code, in the text."""
    return [
        method.name
        for method in proto_rules.methods(files)
        if f"### {method.descriptor.name}\n" not in text
        or any(f"code {route.code}" not in text for route in method.routes.values())  # type: ignore[attr-defined]
    ]
