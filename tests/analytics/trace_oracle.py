"""Computes the trace tables a second time, in plain Python and by other algorithms.

Small and slow: percentiles sort, the graph is a double loop, and the critical path is a longest
path in a graph of events (each span's start and end), which may recurse.
"""

from __future__ import annotations

import functools
import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from typing import Any, TypeAlias

from tests.analytics.trace_spans import EPOCH_US, MINUTE_US, Span

Event: TypeAlias = tuple[str, str]
Key: TypeAlias = tuple[Any, ...]


def percentile(values: Iterable[float], share: float) -> float:
    """Return the nearest-rank percentile."""
    ordered = sorted(values)
    return ordered[math.ceil(share * len(ordered)) - 1]


def percentiles(values: Sequence[float]) -> tuple[float, float, float]:
    """Return p50, p90 and p99."""
    return percentile(values, 0.5), percentile(values, 0.9), percentile(values, 0.99)


def stage(one: Span) -> str:
    """Return the stage that a span's time counts for."""
    if one["kind"] in ("SERVER", "CONSUMER") or not one["parent_span_id"]:
        return str(one["service"])
    return str(one.get("stage") or one["name"])


def traces(spans: list[Span]) -> dict[str, list[Span]]:
    """Return the spans by trace."""
    found: dict[str, list[Span]] = defaultdict(list)
    for one in spans:
        found[one["trace_id"]].append(one)
    return found


def root(trace: list[Span]) -> Span:
    """Return the span that the trace is named after."""
    ids = {one["span_id"] for one in trace}
    tops = [one for one in trace if one["parent_span_id"] not in ids]
    whole = [one for one in tops if not one["parent_span_id"]]
    return min(whole or tops, key=lambda one: (one["start_us"], -one["end_us"], one["span_id"]))


def rpc_red(spans: list[Span], window_us: int) -> dict[Key, Key]:
    """Return (rpc, service, window) -> (count, errors, p50, p90, p99, max)."""
    groups: dict[Key, list[Span]] = defaultdict(list)
    for one in spans:
        if one["kind"] in ("SERVER", "CONSUMER") or not one["parent_span_id"]:
            window = EPOCH_US + (one["start_us"] - EPOCH_US) // window_us * window_us
            groups[one["rpc"], one["service"], window].append(one)
    result = {}
    for key, members in groups.items():
        durations = [one["duration_us"] for one in members]
        errors = sum(one["status"] == "ERROR" for one in members)
        result[key] = (len(members), errors, *percentiles(durations), max(durations))
    return result


def stage_latency(spans: list[Span]) -> dict[Key, Key]:
    """Return (rpc, stage) -> (count, p50, p90, p99, total)."""
    groups: dict[Key, list[float]] = defaultdict(list)
    for trace in traces(spans).values():
        for one in trace:
            groups[root(trace)["rpc"], stage(one)].append(one["duration_us"])
    return {key: (len(all_), *percentiles(all_), sum(all_)) for key, all_ in groups.items()}


def heatmap(spans: list[Span]) -> Counter[Key]:
    """Return (rpc, minute, bucket) -> count."""
    counts: Counter[Key] = Counter()
    for top in map(root, traces(spans).values()):
        minute = top["start_us"] - top["start_us"] % MINUTE_US
        bucket = next(b for b in range(64) if top["duration_us"] < 2 ** (b + 1))
        counts[top["rpc"], minute, bucket] += 1
    return counts


def service_graph(spans: list[Span]) -> dict[Key, Key]:
    """Return (parent, child) -> (calls, errors, p50, p99)."""
    calls: dict[Key, list[Span]] = defaultdict(list)
    taken_up = set()
    by_id = {(one["trace_id"], one["span_id"]): one for one in spans}
    for one in spans:
        causes = {(one["trace_id"], one["parent_span_id"])}
        causes |= {(to["trace_id"], to["span_id"]) for to in one["links"]}
        for cause in sorted(causes & by_id.keys()):
            caller = by_id[cause]
            received = caller["kind"] in ("CLIENT", "PRODUCER") and one["kind"] in (
                "SERVER",
                "CONSUMER",
            )
            if received or caller["service"] != one["service"]:
                calls[caller["service"], one["service"]].append(one)
                taken_up.add(cause)
    for key, one in by_id.items():
        peer = one["attributes"].get("peer.service") or one["attributes"].get("db.system")
        if one["kind"] in ("CLIENT", "PRODUCER") and peer and key not in taken_up:
            calls[one["service"], peer].append(one)
    result = {}
    for pair, callees in calls.items():
        durations = [one["duration_us"] for one in callees]
        errors = sum(one["status"] == "ERROR" for one in callees)
        p50, _, p99 = percentiles(durations)
        result[pair] = (len(callees), errors, p50, p99)
    return result


class Events:
    """One trace as a graph of events: the waits of each start and each end."""

    def __init__(self, trace: list[Span]) -> None:
        """Fit the spans into their parents and lay out the events."""
        self.root = root(trace)["span_id"]
        self.spans = {one["span_id"]: one for one in trace}
        self.place = {one["span_id"]: number for number, one in enumerate(trace)}
        self.children: dict[str, list[str]] = defaultdict(list)
        self.times: dict[str, tuple[int, int]] = {}
        top = self.spans[self.root]
        self._fit(self.root, top["start_us"], max(top["start_us"], top["end_us"]), 0)

    def _fit(self, name: str, start: int, end: int, moved: int) -> None:
        """Note a span's time, then those of its children within it."""
        self.times[name] = (start, end)
        for child, one in self.spans.items():
            known = one["parent_span_id"] in self.spans
            if child == self.root or (one["parent_span_id"] if known else self.root) != name:
                continue
            delta = self._delta(self.spans[name], one, moved) if known else 0
            begin, finish = max(one["start_us"] + delta, start), min(one["end_us"] + delta, end)
            if begin <= finish:
                self.children[name].append(child)
                self._fit(child, begin, finish, delta)

    @staticmethod
    def _delta(parent: Span, child: Span, moved: int) -> int:
        """Return how far the child's clock is moved; `moved` is how far the parent's was."""
        hosts = [(one["service"], one.get("instance")) for one in (parent, child)]
        if hosts[0] == hosts[1]:
            return moved
        if child["kind"] != "SERVER":
            return 0
        early: int = parent["start_us"] + moved - child["start_us"]
        late: int = child["end_us"] - parent["end_us"] - moved
        if early <= 0 and late <= 0:
            return 0
        # Both ways of the call together take -(early + late); each gets half.
        if early + late > 0:
            return max(early, 0)
        return early + (-(early + late)) // 2

    def rank(self, name: str) -> tuple[int, int, int]:
        """Return the order of siblings that touch."""
        return (*self.times[name], self.place[name])

    def waits(self, event: Event) -> tuple[list[Event], int, str]:
        """Return the events that an event waits for, the gap after them, and its span."""
        side, name = event
        if side == "end":
            children = self.children[name]
            last = max((self.times[child][1] for child in children), default=self.times[name][0])
            before: list[Event] = [("end", child) for child in children]
            return before or [("start", name)], self.times[name][1] - last, name
        parent = next(up for up, children in self.children.items() if name in children)
        start = self.times[name][0]
        returned = [
            other
            for other in self.children[parent]
            if self.times[other][1] <= start and self.rank(other) < self.rank(name)
        ]
        last = max((self.times[other][1] for other in returned), default=self.times[parent][0])
        return [("start", parent), *(("end", other) for other in returned)], start - last, parent

    def length(self, without: str | None) -> int:
        """Return the longest path through the graph, if this stage's own time is 0."""

        @functools.cache
        def at(event: Event) -> int:
            if event == ("start", self.root):
                return 0
            before, gap, owner = self.waits(event)
            return max(map(at, before)) + (0 if stage(self.spans[owner]) == without else gap)

        return at(("end", self.root))

    def on_path(self) -> Counter[str]:
        """Return the time per stage on the way back from the root's end to its start."""
        found: Counter[str] = Counter()
        event: Event = ("end", self.root)
        while event != ("start", self.root):
            before, gap, owner = self.waits(event)
            found[stage(self.spans[owner])] += gap
            ends = [name for side, name in before if side == "end"]
            if ends:
                latest = min(
                    ends, key=lambda name: (-self.times[name][1], self.times[name][0], name)
                )
                event = ("end", latest)
            else:
                event = before[0]
        return found


def critical_path(spans: list[Span]) -> dict[Key, Key]:
    """Return (rpc, band, stage) -> (mean time on the path, share, mean saving)."""
    by_rpc: dict[str, list[list[Span]]] = defaultdict(list)
    for trace in traces(spans).values():
        by_rpc[root(trace)["rpc"]].append(trace)
    result = {}
    for rpc, members in by_rpc.items():
        p50, p90, p99 = percentiles([root(trace)["duration_us"] for trace in members])
        bands = {
            "all": (0.0, math.inf),
            "p50": (p50, p90),
            "p90": (p90, p99),
            "p99": (p99, math.inf),
        }
        for band, (low, high) in bands.items():
            chosen = [one for one in members if low <= root(one)["duration_us"] < high]
            for name, row in _means(chosen).items():
                result[rpc, band, name] = row
    return result


def _means(chosen: list[list[Span]]) -> dict[str, Key]:
    """Return stage -> (mean time on the path, share, mean saving) of these traces."""
    on_path: Counter[str] = Counter()
    saving: Counter[str] = Counter()
    for trace in chosen:
        events = Events(trace)
        path = events.on_path()
        on_path.update(path)
        saving.update({name: events.length(None) - events.length(name) for name in path})
    whole = sum(on_path.values())
    count = len(chosen)
    return {
        name: (us / count, us / whole, saving[name] / count) for name, us in on_path.items() if us
    }
