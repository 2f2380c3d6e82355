"""`python -m analytics.report TABLES OUTPUT [--png FILE [--dark]]`: report on finished tables."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from analytics import report
from analytics.report import image


def main(arguments: list[str] | None = None) -> int:
    """Write the report, and the picture if asked for; return 0, or 1 after a line that says why."""
    parser = argparse.ArgumentParser(
        prog="python -m analytics.report",
        description="Write the report on the tables of `viewstamp analyze` as one HTML page.",
    )
    parser.add_argument("tables", type=Path, help="directory with the tables")
    parser.add_argument("output", type=Path, help="HTML file to write")
    parser.add_argument("--png", type=Path, help="picture of the page to write; needs chromium")
    parser.add_argument("--dark", action="store_true", help="take the picture in dark colours")
    options = parser.parse_args(arguments)
    try:
        page = report.write(options.tables, options.output)
        if options.png is not None:
            image.write(page, options.png, dark=options.dark)
    except report.ReportError as error:
        sys.stderr.write(f"{error}\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
