"""Names in traces may come from anybody, and must not become markup, style or script."""

from __future__ import annotations

from pathlib import Path

import pytest

from analytics import report
from analytics.report import markup
from analytics.report.columns import SHOWN
from tests.analytics import report_pages, report_tables

HOSTILE = "</script></td><img src=x onerror=alert(1)>\"'><svg/onload=alert(2)>&lt;b&gt;{{1}}"
EVENT = "on"


def hostile(directory: Path) -> Path:
    """Write the sample with every text made hostile; different texts stay different."""
    plain = report_tables.sample(directory / "plain")
    for path in sorted(plain.iterdir()):
        rows = [
            {k: f"{HOSTILE}{v}" if isinstance(v, str) else v for k, v in row.items()}
            for row in report_tables.read(plain, path.name)
        ]
        # Rules look for these words; a producer cannot change them.
        words = {"band", "confidence", "metric"}
        known = report_tables.read(plain, path.name)
        merged = [
            row | {k: old[k] for k in words & old.keys()}
            for row, old in zip(rows, known, strict=True)
        ]
        report_tables.write(directory / "tables", path.name, merged)
    return directory / "tables"


def test_hostile_names_stay_text(tmp_path: Path) -> None:
    """With markup in every text, the page has the same elements as with plain names."""
    tables = hostile(tmp_path)
    pages = [
        report_pages.parse(report.write(source, tmp_path / "page.html").read_text(encoding="utf-8"))
        for source in (tmp_path / "plain", tables)
    ]
    tags = [{e.tag for e in page.elements} for page in pages]
    assert tags[0] == tags[1]
    assert pages[1].faults == []
    assert len(pages[1].all("script")) == 1
    names = {name for e in pages[1].elements for name in e.attributes}
    assert not {name for name in names if name.startswith(EVENT)}
    assert any(HOSTILE in e.text for e in pages[1].all("td"))
    assert any(HOSTILE in str(e.attributes.get("data-tip")) for e in pages[1].elements)
    assert list(report_pages.wrong_numbers(pages[1], tables)) == []
    assert len(pages[1].all("details")) == len(SHOWN)


@pytest.mark.parametrize(
    ("children", "attributes", "want"),
    [
        (("<b>&",), {}, "<p>&lt;b&gt;&amp;</p>"),
        ((markup.Markup("<b>"),), {}, "<p><b></p>"),
        ((["a", None, ["<"]],), {}, "<p>a&lt;</p>"),
        ((), {"title": "\"'<"}, '<p title="&quot;&#x27;&lt;"></p>'),
        (
            (),
            {"class_": "c", "data_raw": 0, "hidden": True, "id": None},
            '<p class="c" data-raw="0" hidden></p>',
        ),
        ((), {"x": 1.50001, "y": 2.0}, '<p x="1.5" y="2"></p>'),
        (("a\x00b\u202ec\ud800",), {}, "<p>a\ufffdb\ufffdc\ufffd</p>"),
        (("a\n\tb",), {}, "<p>a\n\tb</p>"),
    ],
)
def test_element_escapes(
    children: tuple[markup.Child, ...], attributes: dict[str, object], want: str
) -> None:
    """Text and attributes are escaped, markup is not, odd characters are shown as such."""
    assert markup.element("p", *children, **attributes) == want
