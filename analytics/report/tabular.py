"""Tables of the page: every value has its unit, and the script sorts and filters rows."""

from __future__ import annotations

import math
from typing import Any, Final

import pandas as pd
from pandas.api.types import is_bool_dtype, is_numeric_dtype

from analytics.report import units
from analytics.report.columns import ROWS_SHOWN_MAX, Shown, title_of, unit_of
from analytics.report.drawing import CHARACTER_WIDTH, fit
from analytics.report.markup import Markup, element
from analytics.report.overview import Names, records
from analytics.report.reading import Tables

# A longer text is cut in the middle, since an attribute that fills the screen helps nobody.
CELL_CHARACTERS_MAX: Final = 160


def table(tables: Tables, names: Names, shown: Shown) -> Markup:
    """Return a table in a part of the page that can be opened, with its filter."""
    rows, row_count = tables[shown.name], tables.row_counts[shown.name]
    # All columns break ties, so that the same tables give the same page.
    order = [shown.order, *(name for name in rows.columns if name != shown.order)]
    ascending = [False] + [True] * (len(order) - 1)
    rows = rows.sort_values(order, ascending=ascending, kind="stable").head(ROWS_SHOWN_MAX)
    count = units.count(row_count)
    told = f"{count} row{'' if row_count == 1 else 's'}"
    cut = f"The {len(rows)} with the largest {title_of(shown.order)}, of {count}. "
    note = (cut if len(rows) < row_count else "") + shown.note
    key = f"table-{shown.name}"
    return element(
        "details",
        element("summary", element("h3", shown.title), " ", element("span", told, class_="muted")),
        element("p", note, class_="muted") if note else None,
        _filter(key, len(rows)),
        _grid(key, shown.title, rows, names),
        class_="table",
        id=key,
    )


def _filter(key: str, count: int) -> Markup:
    """Return the field that filters the rows, and the count of rows. The script reveals it."""
    return element(
        "p",
        element("label", "Filter ", element("input", type="search", data_filter=f"{key}-grid")),
        " ",
        element("output", f"{count} shown", class_="muted", data_count=f"{key}-grid"),
        class_="filter",
        hidden=True,
    )


def _grid(key: str, title: str, rows: pd.DataFrame, names: Names) -> Markup:
    """Return the table itself, in a frame that scrolls sideways and can be reached by keyboard."""
    numeric = {
        name: is_numeric_dtype(kind) and not is_bool_dtype(kind)
        for name, kind in rows.dtypes.items()
    }
    head = element(
        "tr",
        (
            element("th", title_of(name), scope="col", class_="number" if numeric[name] else None)
            for name in rows.columns
        ),
    )
    body = (_row(row, numeric, names) for row in records(rows))
    return element(
        "div",
        element(
            "table",
            element("caption", title, class_="unseen"),
            element("thead", head),
            element("tbody", body),
            id=f"{key}-grid",
        ),
        class_="scroll",
        tabindex="0",
        role="region",
        aria_label=title,
    )


def _row(row: dict[str, Any], numeric: dict[str, bool], names: Names) -> Markup:
    """Return a row. Numbers bear their raw value for the script to sort by."""
    metric = str(row.get("metric", ""))
    cells = []
    for name, value in row.items():
        if numeric[name]:
            told = units.show(value, unit_of(name, metric))
            raw = repr_of(value) if math.isfinite(value) else None
            cells.append(element("td", told, class_="number", data_raw=raw))
        elif name == "rpc" and isinstance(value, str):
            cells.append(element("td", _text(names.short(value)), title=_text(value)))
        else:
            cells.append(element("td", _text(value)))
    return element("tr", cells)


def repr_of(value: float) -> str:
    """Return all digits of a number: of an integer all, of a float the fewest that identify it."""
    return str(int(value)) if float(value).is_integer() else repr(float(value))


def _text(value: Any) -> str:
    """Return a value that is not a number, cut to a length that fits a row."""
    if value is None or value is pd.NA or (isinstance(value, float) and math.isnan(value)):
        return units.ABSENT
    if isinstance(value, bool):
        return "yes" if value else "no"
    return fit(str(value), CELL_CHARACTERS_MAX * CHARACTER_WIDTH)
