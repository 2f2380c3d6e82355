"""The service graph: layers of services, calls between them as curves.

Layers follow from the longest way from a service that nobody calls. Calls against that direction,
which close a cycle, are drawn as curves too.
"""

from __future__ import annotations

import math
from collections import defaultdict
from typing import Any, Final

from analytics.report import units
from analytics.report.drawing import CHARACTER_WIDTH, NARROW, WIDE, Canvas, Drawing
from analytics.report.markup import Markup
from analytics.report.overview import Names, records
from analytics.report.reading import Tables

# The calls drawn are those of most time; beyond this nobody can follow a line.
EDGES_DRAWN_MAX: Final = 24
BOX_HEIGHT: Final = 34
BOX_WIDTH_MAX: Final = 190
PADDING: Final = 8
LINE_WIDTH_MAX: Final = 7
ERROR_RATE_DRAWN: Final = 0.01

Layers = list[list[str]]


def service_graph(tables: Tables, names: Names) -> Drawing | None:
    """Draw which service calls which, how often and how fast."""
    rows = tables["service_graph"].dropna(subset=["parent", "child", "calls"])
    if rows.empty:
        return None
    order = ["calls", "parent", "child"]
    rows = rows.sort_values(order, ascending=[False, True, True]).head(EDGES_DRAWN_MAX)
    calls = records(rows)
    layers = layered([(str(call["parent"]), str(call["child"])) for call in calls])
    return Drawing(
        "service-graph",
        "Service graph",
        "Calls from service to service with their p99; thicker is more often, red if at least "
        f"{units.share(ERROR_RATE_DRAWN)} failed.",
        _drawn(calls, layers, NARROW),
        _drawn(calls, layers, WIDE),
    )


def layered(edges: list[tuple[str, str]]) -> Layers:
    """Return the services in layers, so that calls go from earlier to later layers.

    Of a cycle, the call that closes it does not count; neither do calls to oneself.
    """
    callees: dict[str, list[str]] = defaultdict(list)
    called = set()
    for parent, child in edges:
        if parent != child:
            callees[parent].append(child)
            called.add(child)
    depth: dict[str, int] = {}
    services = sorted({service for edge in edges for service in edge})
    # Services that nobody calls come first; of a cycle that nobody enters, the first by name.
    for root in sorted(services, key=lambda service: (service in called, service)):
        if root not in depth:
            _descend(root, callees, depth)
    layers: Layers = [[] for _ in range(max(depth.values()) + 1)]
    for service in services:
        layers[depth[service]].append(service)
    return [layer for layer in layers if layer]


def _descend(root: str, callees: dict[str, list[str]], depth: dict[str, int]) -> None:
    """Set the depths below a root; where two ways lead to a service the longer one counts."""
    waiting = [(root, 0, frozenset[str]())]
    while waiting:
        service, at, above = waiting.pop()
        if depth.get(service, -1) >= at:
            continue
        depth[service] = at
        path = above | {service}
        waiting += [(child, at + 1, path) for child in callees[service] if child not in path]


def _drawn(calls: list[dict[str, Any]], layers: Layers, width: int) -> Markup:
    """Return boxes and curves: layers from left to right, or from top to bottom if narrow."""
    is_wide = width == WIDE
    longest = max(len(name) for layer in layers for name in layer)
    across = max(len(layer) for layer in layers)
    room = width / (len(layers) if is_wide else across) - (26 if is_wide else 10)
    box = min(BOX_WIDTH_MAX, room, longest * CHARACTER_WIDTH + 2 * PADDING + 8)
    step = 64 if is_wide else 100
    height = (across if is_wide else len(layers)) * step + 8
    places: dict[str, tuple[float, float]] = {}
    for depth, layer in enumerate(layers):
        for place, service in enumerate(layer):
            along = (depth + 0.5) / len(layers)
            beside = (place + 0.5) / len(layer)
            x, y = (along, beside) if is_wide else (beside, along)
            places[service] = (x * width, y * height)
    canvas = Canvas(width, height)
    most = math.log2(1 + max(call["calls"] for call in calls))
    for call in calls:
        _curve(canvas, call, places, box, most, is_wide=is_wide)
    for service, (x, y) in sorted(places.items()):
        canvas.rect(x - box / 2, y - BOX_HEIGHT / 2, box, BOX_HEIGHT, rx=6, class_="box")
        canvas.text(x, y + 4, service, box - PADDING, class_="label", text_anchor="middle")
    for call in calls:
        _told(canvas, call, places, is_wide=is_wide)
    return canvas.svg("wide" if is_wide else "narrow")


def _curve(
    canvas: Canvas,
    call: dict[str, Any],
    places: dict[str, tuple[float, float]],
    box: float,
    most: float,
    *,
    is_wide: bool,
) -> None:
    """Draw a call from the edge of one box to that of the other."""
    (x1, y1), (x2, y2) = places[str(call["parent"])], places[str(call["child"])]
    failed = call["errors"] / call["calls"] if call["calls"] else 0.0
    thickness = 1 + (LINE_WIDTH_MAX - 1) * math.log2(1 + call["calls"]) / most
    tip = f"{call['parent']} calls {call['child']}: {units.show(call['calls'], 'count')} calls, "
    tip += f"{units.show(failed, 'share')} failed, p50 {units.show(call['p50_us'], 'us')}, "
    tip += f"p99 {units.show(call['p99_us'], 'us')}"
    if is_wide:
        x1, x2 = (x1 + box / 2, x2 - box / 2) if x1 < x2 else (x1 - box / 2, x2 + box / 2)
        middle = (x1 + x2) / 2
        bends = f"{middle:.1f},{y1:.1f} {middle:.1f},{y2:.1f}"
    else:
        half = BOX_HEIGHT / 2
        y1, y2 = (y1 + half, y2 - half) if y1 < y2 else (y1 - half, y2 + half)
        middle = (y1 + y2) / 2
        bends = f"{x1:.1f},{middle:.1f} {x2:.1f},{middle:.1f}"
    kind = "edge bad-edge" if failed >= ERROR_RATE_DRAWN else "edge"
    canvas.path(
        f"M{x1:.1f},{y1:.1f}C{bends} {x2:.1f},{y2:.1f}",
        class_=kind,
        stroke_width=float(thickness),
        data_tip=tip,
    )


def _told(
    canvas: Canvas,
    call: dict[str, Any],
    places: dict[str, tuple[float, float]],
    *,
    is_wide: bool,
) -> None:
    """Write the p99 of a call on its curve, nearer to the called, where curves lie apart."""
    (x1, y1), (x2, y2) = places[str(call["parent"])], places[str(call["child"])]
    part = 0.5 if is_wide else 0.56
    x, y = x1 + part * (x2 - x1), y1 + part * (y2 - y1)
    if call["parent"] == call["child"]:
        x, y = x1, y1 + BOX_HEIGHT / 2 + 13
    told = units.show(call["p99_us"], "us")
    canvas.text(x, y + 4, told, class_="tick halo", text_anchor="middle")
