"""What campaigns share: figures in pages, and the code on which a result depends."""

from __future__ import annotations

from pathlib import Path

import pytest

from testkit.campaigns import document
from testkit.campaigns.fingerprint import ROOT, closure
from testkit.world.campaign import ENTRY


def test_fingerprint_covers_what_a_run_imports() -> None:
    """The programs, the world and the judges are part of it; campaigns and tests are not."""
    names = {str(path.relative_to(ROOT)) for path in closure(ROOT, ENTRY)}

    assert {
        "coordinator/app/composition.py",
        "coordinator/vsr/replica.py",
        "services/streams/domain.py",
        "testkit/memory_storage.py",
        "testkit/oracles/wing_gong.py",
        "testkit/world/faults.py",
        "viewstamp/client/__init__.py",
        "viewstamp/limits.py",
    } <= names
    assert not [name for name in names if "/test_" in name]


def test_closure_follows_every_form_of_import(tmp_path: Path) -> None:
    """Packages, modules of packages, names in modules and imports within functions are followed."""
    for name, text in {
        "a/__init__.py": "",
        "a/first.py": "import a.second\nfrom a import third\nimport json\n",
        "a/second.py": "def late():\n    from a.fourth import thing\n",
        "a/third.py": "",
        "a/fourth.py": "thing = 1\n",
        "a/other.py": "",
    }.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)

    found = {path.name for path in closure(tmp_path, "a.first")}

    assert found == {"__init__.py", "first.py", "second.py", "third.py", "fourth.py"}


def test_figures_go_between_two_comments_of_a_page(tmp_path: Path) -> None:
    """The text around the comments stays, and a page with only one of them is refused."""
    page = tmp_path / "page.md"
    page.write_text("before\n<!-- figures -->\nold\n<!-- end of figures -->\nafter\n")

    document.write(page, "figures", "new\n")

    assert page.read_text() == "before\n<!-- figures -->\nnew\n<!-- end of figures -->\nafter\n"
    page.write_text("<!-- figures -->\n")
    with pytest.raises(ValueError, match="has not both"):
        document.write(page, "figures", "new\n")
