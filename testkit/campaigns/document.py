"""Writes figures to where people read them: between two comments of a page, or as a file."""

from __future__ import annotations

from pathlib import Path


def write(path: Path, name: str, text: str) -> None:
    """Put `text` between `<!-- name -->` and `<!-- end of name -->`; a file without is replaced.

    Raises ValueError if a page has one of the two comments alone.
    """
    begin, end = f"<!-- {name} -->\n", f"<!-- end of {name} -->\n"
    page = path.read_text() if path.exists() else ""
    if begin not in page and end not in page:
        path.write_text(text)
        return
    before, found, rest = page.partition(begin)
    _, closed, after = rest.partition(end)
    if not (found and closed):
        raise ValueError(f"{path} has not both of {begin.strip()} and {end.strip()}, in this order")
    path.write_text(f"{before}{begin}{text}{end}{after}")
