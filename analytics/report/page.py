"""The page put together: headlines, findings, plots, tables, and what is missing.

It loads nothing: style and script stand in it, and its content security policy allows just these
two, by their hashes. The same tables give the same page, byte for byte.
"""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Callable, Iterable
from importlib import resources
from typing import Final

from analytics.report import columns, plots_snapshots, plots_traces, service_graph, tabular, units
from analytics.report.drawing import Drawing
from analytics.report.findings import Headline, findings, headlines
from analytics.report.markup import Child, Markup, element, join
from analytics.report.overview import Names, names_of
from analytics.report.reading import Number, Source, Tables
from analytics.report.statements import Name, Part, ReportFinding

TITLE: Final = "Viewstamp insight"
Plot = Callable[[Tables, Names], Drawing | None]

# The heading, its key, the text if nothing can be drawn, and the plots.
SECTIONS: Final[tuple[tuple[str, str, tuple[Plot, ...]], ...]] = (
    (
        "Requests",
        "requests",
        (
            plots_traces.p99_over_time,
            plots_traces.percentiles,
            plots_traces.critical_path,
            plots_traces.stages,
            plots_traces.heatmap,
            service_graph.service_graph,
            plots_traces.errors,
            plots_traces.view_changes,
        ),
    ),
    (
        "Snapshots",
        "snapshots",
        (
            plots_snapshots.growth,
            plots_snapshots.churn,
            plots_snapshots.cuts,
            plots_snapshots.tenants,
            plots_snapshots.garbage,
            plots_snapshots.restore,
        ),
    ),
)
# Colour alone carries no meaning: each severity also has a sign and a word.
SIGNS: Final = {"critical": "✕", "warning": "!", "notice": "i", "good": "✓"}


def page(tables: Tables) -> str:
    """Return the report on the tables as one HTML page."""
    names = names_of(tables)
    style, script = _asset("report.css"), _asset("report.js")
    head = element(
        "head",
        element("meta", charset="utf-8"),
        element("meta", http_equiv="Content-Security-Policy", content=_policy(style, script)),
        element("meta", name="viewport", content="width=device-width, initial-scale=1"),
        element("meta", name="color-scheme", content="light dark"),
        element("meta", name="referrer", content="no-referrer"),
        element("title", TITLE),
        element("style", Markup(style)),
    )
    body = element(
        "body",
        _header(tables),
        element(
            "main",
            _headlines(headlines(tables, names)),
            _findings(findings(tables, names)),
            (_plots(title, key, plots, tables, names) for title, key, plots in SECTIONS),
            _tables(tables, names),
            _missing(tables),
        ),
        element("div", id="tip", role="presentation", hidden=True),
        element("script", Markup(script)),
    )
    return f"<!doctype html>\n{element('html', head, body, lang='en')}\n"


def _policy(style: str, script: str) -> str:
    """Return the content security policy. Images are plots on their way to a PNG file."""
    return (
        f"default-src 'none'; style-src '{_hash(style)}'; script-src '{_hash(script)}';"
        " img-src blob: data:; base-uri 'none'; form-action 'none'"
    )


def _hash(asset: str) -> str:
    digest = hashlib.sha256(asset.encode()).digest()
    return f"sha256-{base64.b64encode(digest).decode()}"


def _asset(name: str) -> str:
    """Return a file of the package that goes into the page unchanged."""
    return (resources.files("analytics.report") / "assets" / name).read_text(encoding="utf-8")


def _header(tables: Tables) -> Markup:
    """Return the title, the period that the data is about, the links and the switch."""
    links = (("findings", "Findings"), *((key, title) for title, key, _ in SECTIONS))
    return element(
        "header",
        element("div", element("h1", TITLE), element("p", _period(tables), class_="muted")),
        element(
            "nav",
            (element("a", title, href=f"#{key}") for key, title in (*links, ("tables", "Tables"))),
            element("button", "Dark", type="button", id="theme", hidden=True),
            aria_label="Parts of the page",
        ),
    )


def _period(tables: Tables) -> str:
    """Return from when to when the requests are."""
    starts = tables["rpc_red"]["window_start"].dropna()
    if starts.empty:
        return "No requests in the tables"
    first, last = units.moment(float(starts.min())), units.moment(float(starts.max()))
    return f"Requests of {first} UTC" if first == last else f"Requests from {first} to {last} UTC"


def _headlines(shown: list[Headline]) -> Markup | None:
    """Return the numbers above all others."""
    if not shown:
        return None
    items = (
        element(
            "div",
            element("dt", headline.label),
            element(
                "dd",
                _number(headline.number),
                element("span", _part(headline.of), class_="of") if headline.of else None,
            ),
        )
        for headline in shown
    )
    return element(
        "section",
        element("h2", "At a glance", class_="unseen"),
        element("dl", items, class_="tiles"),
    )


def _findings(found: list[ReportFinding]) -> Markup:
    """Return the findings as a list, or one sentence if there is none."""
    items = (
        element(
            "li",
            element("span", SIGNS[finding.severity], class_="sign", aria_hidden="true"),
            element("span", element("b", finding.severity, class_="word"), class_="severity"),
            element("p", (_part(part) for part in finding.parts), "."),
            class_=finding.severity,
            data_rule=finding.rule,
        )
        for finding in found
    )
    body = element("ul", items, class_="findings") if found else element("p", "Nothing was found.")
    return element("section", element("h2", "Findings"), body, id="findings")


def _part(part: Part) -> Child:
    """Return one piece of a finding."""
    if isinstance(part, Number):
        return _number(part)
    if isinstance(part, Name):
        return element("strong", part.short, title=part.full if part.full != part.short else None)
    return part


def _number(number: Number) -> Markup:
    """Return a number with its unit; attributes have its value and how to compute it again."""
    source = number.source
    return element(
        "data",
        units.show(number.value, number.unit),
        value=tabular.repr_of(number.value) if number.value == number.value else "",
        data_table=source.table,
        data_column=source.column,
        data_aggregate=source.aggregate,
        data_where=_conditions(source.where),
        data_over=source.over,
        data_over_table=source.over_table,
        data_over_where=_conditions(source.over_where) if source.over_table else None,
        data_unit=number.unit,
        title=_told(source),
    )


def _conditions(where: Iterable[tuple[str, object]]) -> str:
    """Return the conditions as JSON; numbers of numpy become plain ones."""
    return json.dumps(dict(where), default=lambda value: value.item(), ensure_ascii=False)


def _told(source: Source) -> str:
    """Return in words where a number comes from."""
    how = {"only": "", "sum": "sum of ", "max": "maximum of ", "rows": "rows of "}
    column = f"{source.table}.{source.column}" if source.column else source.table
    conditions = " and ".join(f"{name} = {value}" for name, value in source.where)
    over = f", over {source.over_table or source.table}.{source.over}" if source.over else ""
    return how[source.aggregate] + column + (f" where {conditions}" if conditions else "") + over


def _plots(title: str, key: str, plots: tuple[Plot, ...], tables: Tables, names: Names) -> Markup:
    """Return the plots of one part of the page, or one sentence if there is nothing to draw."""
    drawings = [drawing for plot in plots if (drawing := plot(tables, names)) is not None]
    body: Child = [_figure(drawing) for drawing in drawings]
    if not drawings:
        body = element("p", "The tables for this part are missing or empty.", class_="muted")
    return element("section", element("h2", title), element("div", body, class_="plots"), id=key)


def _figure(drawing: Drawing) -> Markup:
    """Return a plot with its heading, its words and its legend."""
    legend = (
        element("li", element("i", class_=f"key {kind}", aria_hidden="true"), name)
        for kind, name in drawing.legend
    )
    return element(
        "figure",
        element(
            "figcaption",
            element("h3", drawing.title),
            element("p", drawing.summary, class_="muted"),
        ),
        element("ul", legend, class_="legend") if drawing.legend else None,
        join([drawing.narrow, drawing.wide or Markup()]),
        element(
            "button",
            "PNG",
            type="button",
            class_="save",
            data_name=f"{drawing.key}.png",
            aria_label=f"Save the plot {drawing.title} as PNG",
            hidden=True,
        ),
        id=f"plot-{drawing.key}",
        class_="two" if drawing.wide else None,
    )


def _tables(tables: Tables, names: Names) -> Markup:
    """Return all tables that have rows."""
    shown = [shown for shown in columns.SHOWN if not tables[shown.name].empty]
    body: Child = [tabular.table(tables, names, table) for table in shown]
    if not shown:
        body = element("p", "No table has a row.", class_="muted")
    return element("section", element("h2", "Tables"), body, id="tables")


def _missing(tables: Tables) -> Markup | None:
    """Return the tables that are missing or empty, so that silence is not mistaken for health."""
    lines = [
        *((name, problem) for name, problem in tables.problems.items()),
        *(
            (name, "has no rows")
            for name, count in tables.row_counts.items()
            if count == 0 and name not in tables.problems
        ),
    ]
    if not lines:
        return None
    items = (
        element("li", element("code", name), ": ", why, data_missing=name) for name, why in lines
    )
    return element(
        "section",
        element("h2", "Not on this page"),
        element("p", "The page above does not use these tables.", class_="muted"),
        element("ul", items, class_="missing"),
        id="missing",
    )
