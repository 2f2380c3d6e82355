"""The report: tables become one self-contained HTML page. It needs neither Spark nor a network.

units       numbers with their units
markup      HTML built from values, escaped
reading     tables into memory; where each number comes from
overview    what several parts need: short names, one row per RPC
statements  what findings are made of
findings    all rules, put in order; findings_traces and findings_snapshots have them
drawing     SVG; plots_traces, plots_snapshots and service_graph draw
columns     how tables are shown; tabular shows them
page        all of it put together
words       the findings as plain sentences
browser     headless Chromium, driven through a pipe
image       the page as PNG
"""

from __future__ import annotations

from pathlib import Path

from analytics.report.page import page
from analytics.report.reading import ReportError, load
from analytics.report.words import sentences

__all__ = ["ReportError", "sentences", "write"]


def write(tables_directory: Path, output: Path) -> Path:
    """Write the report on the tables to the file `output`; return its path.

    Tables that are missing, unfinished or of another version are named on the page. Raises
    ReportError if there is no such directory, or the file cannot be written.
    """
    html = page(load(tables_directory))
    # The file is written under another name and moved into place: a browser never sees half a page.
    temporary = output.with_name(f".{output.name}.part")
    try:
        output.parent.mkdir(parents=True, exist_ok=True)
        temporary.write_text(html, encoding="utf-8")
        temporary.replace(output)
    except OSError as error:
        raise ReportError(
            f"{output} cannot be written ({error.strerror}): choose another output"
        ) from error
    return output
