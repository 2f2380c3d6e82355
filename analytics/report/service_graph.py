"""The service graph: layers of services, calls between them as curves.

Layers follow from the longest way from a service that nobody calls. Calls against that direction,
which close a cycle, are drawn as curves too.
"""

from __future__ import annotations

import math
from collections import defaultdict
from typing import Any, Final, TypeAlias

from analytics.report import units
from analytics.report.drawing import CHARACTER_WIDTH, NARROW, WIDE, Canvas, Drawing
from analytics.report.markup import Markup
from analytics.report.overview import Names, records
from analytics.report.reading import Tables

# At most this many calls are drawn, those with most time; with more, lines are hard to follow.
EDGES_DRAWN_MAX: Final = 24
BOX_HEIGHT: Final = 34
BOX_WIDTH_MAX: Final = 190
PADDING: Final = 8
LINE_WIDTH_MAX: Final = 7
ERROR_RATE_DRAWN: Final = 0.01

Layers: TypeAlias = list[list[str]]
Point: TypeAlias = tuple[float, float]
Curve: TypeAlias = tuple[Point, Point, Point, Point]


def service_graph(tables: Tables, names: Names) -> Drawing | None:
    """Draw which service calls which, how often and how fast."""
    rows = tables["service_graph"].dropna(subset=["parent", "child", "calls"])
    if rows.empty:
        return None
    order = ["calls", "parent", "child"]
    rows = rows.sort_values(order, ascending=[False, True, True]).head(EDGES_DRAWN_MAX)
    calls = records(rows)
    layers = layered([(call["parent"], call["child"]) for call in calls])
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

    Calls that close a cycle do not count, nor do calls of a service to itself.
    """
    callees: dict[str, list[str]] = defaultdict(list)
    called = set()
    for parent, child in edges:
        if parent != child:
            callees[parent].append(child)
            called.add(child)
    depth: dict[str, int] = {}
    services = sorted({service for edge in edges for service in edge})
    # Uncalled services come first; a cycle that nobody enters begins with its first name.
    for root in sorted(services, key=lambda service: (service in called, service)):
        if root not in depth:
            _descend(root, callees, depth)
    layers: Layers = [[] for _ in range(max(depth.values()) + 1)]
    for service in services:
        layers[depth[service]].append(service)
    return [layer for layer in layers if layer]


def shared_prefix(services: list[str]) -> str:
    """Return the prefix that all services share, up to a dash or dot: it distinguishes none."""
    if len(services) < 2:
        return ""
    first, last = min(services), max(services)
    same = next((i for i in range(len(first)) if first[i] != last[i : i + 1]), len(first))
    return first[: max(first.rfind("-", 0, same), first.rfind(".", 0, same)) + 1]


def _descend(root: str, callees: dict[str, list[str]], depth: dict[str, int]) -> None:
    """Set the depths below a root; if two ways lead to a service, the longer one counts."""
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
    services = [service for layer in layers for service in layer]
    shared = shared_prefix(services)
    longest = max(len(service) for service in services) - len(shared)
    across = max(len(layer) for layer in layers)
    room = width / (len(layers) if is_wide else across) - (26 if is_wide else 10)
    box = min(BOX_WIDTH_MAX, room, longest * CHARACTER_WIDTH + 2 * PADDING + 8)
    step = 64 if is_wide else 100
    height = (across if is_wide else len(layers)) * step + 8
    places: dict[str, Point] = {}
    for depth, layer in enumerate(layers):
        for place, service in enumerate(layer):
            along = (depth + 0.5) / len(layers)
            beside = (place + 0.5) / len(layer)
            x, y = (along, beside) if is_wide else (beside, along)
            places[service] = (x * width, y * height)
    canvas = Canvas(width, height)
    most = math.log2(1 + max(call["calls"] for call in calls))
    curves = [_curve(places[c["parent"]], places[c["child"]], box, is_wide=is_wide) for c in calls]
    for call, curve in zip(calls, curves, strict=True):
        _draw_call(canvas, call, curve, most)
    for service, (x, y) in sorted(places.items()):
        canvas.rect(x - box / 2, y - BOX_HEIGHT / 2, box, BOX_HEIGHT, rx=6, class_="box")
        words = service.removeprefix(shared)
        canvas.text(x, y + 4, words, box - PADDING, class_="label", text_anchor="middle")
    for call, curve in zip(calls, curves, strict=True):
        x, y = curve[-1]
        told = units.show(call["p99_us"], "us")
        # Curves are spread out at the called service; in wide drawings they arrive from the left.
        if is_wide:
            comes_from_above = curve[0][1] < y
            y += 16 if comes_from_above else -8
            canvas.text(x - 8, y, told, class_="tick halo", text_anchor="end")
        else:
            canvas.text(x + 8, y - 6, told, class_="tick halo")
    return canvas.svg("wide" if is_wide else "narrow")


def _curve(caller: Point, called: Point, box: float, *, is_wide: bool) -> Curve:
    """Return the Bezier curve from the edge of one box to that of the other."""
    (x1, y1), (x2, y2) = caller, called
    half = BOX_HEIGHT / 2
    if caller == called:
        # A loop below the box.
        y1 += half
        return (
            (x1 - box / 4, y1),
            (x1 - box / 4, y1 + 24),
            (x1 + box / 4, y1 + 24),
            (x1 + box / 4, y1),
        )
    if is_wide:
        x1, x2 = (x1 + box / 2, x2 - box / 2) if x1 < x2 else (x1 - box / 2, x2 + box / 2)
        return (x1, y1), ((x1 + x2) / 2, y1), ((x1 + x2) / 2, y2), (x2, y2)
    y1, y2 = (y1 + half, y2 - half) if y1 < y2 else (y1 - half, y2 + half)
    return (x1, y1), (x1, (y1 + y2) / 2), (x2, (y1 + y2) / 2), (x2, y2)


def _draw_call(canvas: Canvas, call: dict[str, Any], curve: Curve, most: float) -> None:
    """Draw the calls from one service to another as one curve."""
    failed = call["errors"] / call["calls"] if call["calls"] else 0.0
    tip = f"{call['parent']} calls {call['child']}: {units.show(call['calls'], 'count')} calls, "
    tip += f"{units.show(failed, 'share')} failed, p50 {units.show(call['p50_us'], 'us')}, "
    tip += f"p99 {units.show(call['p99_us'], 'us')}"
    start, *bends = (f"{x:.1f},{y:.1f}" for x, y in curve)
    canvas.path(
        f"M{start}C{' '.join(bends)}",
        class_="edge bad-edge" if failed >= ERROR_RATE_DRAWN else "edge",
        stroke_width=1 + (LINE_WIDTH_MAX - 1) * math.log2(1 + call["calls"]) / most,
        data_tip=tip,
    )
