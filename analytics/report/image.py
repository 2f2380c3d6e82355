"""The page as a PNG file, taken by headless Chromium. Single plots save themselves in the page."""

from __future__ import annotations

import base64
from pathlib import Path
from typing import Final

from analytics.report import browser
from analytics.report.reading import ReportError

WIDTH_PX: Final = 1280


def write(page: Path, output: Path, width_px: int = WIDTH_PX, *, dark: bool = False) -> Path:
    """Write a picture of the whole page; return its path.

    Raises ReportError if there is no browser, or the file cannot be written.
    """
    with browser.running() as running:
        running.open(page, width_px, dark=dark)
        picture = base64.b64decode(running.screenshot())
    try:
        output.write_bytes(picture)
    except OSError as error:
        raise ReportError(
            f"{output} cannot be written ({error.strerror}): choose another output"
        ) from error
    return output
