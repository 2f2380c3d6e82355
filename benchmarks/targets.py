"""The figures that Viewstamp must reach and aims at, compared with etcd in the same run."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from statistics import median
from typing import Any, Final

Figures = Mapping[str, float]  # of one measurement, as benchmarks.load prints them


@dataclass(frozen=True, slots=True)
class TargetRow:
    """One row: a figure of `workload`, as a ratio to the same figure of `peer` if there is one.

    Without a peer the figure itself is judged. Lower is better then, and for all times.
    """

    what: str
    workload: str
    peer: str | None
    figure: str
    must: float
    aim: float


@dataclass(frozen=True, slots=True)
class _Goal:
    """What one replica and three must reach and aim at."""

    lone: tuple[float, float]
    three: tuple[float, float]


# What is measured, the workload, etcd's, the figure, and the goals. Each kind of client is compared
# with its like: the leanest one, grpc's own, ours with etcd's.
_AGAINST_ETCD: Final = (
    (
        "raw unary CreateTopic, 256 in flight, the leanest client on both sides, against puts/s",
        ("create_unary", "etcd_put_concurrent", "commands_per_s"),
        _Goal((0.5, 1.0), (0.5, 1.0)),
    ),
    (
        "raw unary CreateTopic, 256 callers, grpc's own client on both sides, against puts/s",
        ("create_unary_by_clients", "etcd_put_by_clients", "commands_per_s"),
        _Goal((1.0, 2.0), (1.0, 2.0)),
    ),
    (
        "CreateTopic, 256 callers through our client, against puts/s of the leanest client",
        ("create_concurrent", "etcd_put_concurrent", "commands_per_s"),
        _Goal((1.8, 4.0), (2.6, 6.0)),
    ),
    (
        "the same, against puts/s through a client in Python",
        ("create_concurrent", "etcd_put_by_clients", "commands_per_s"),
        _Goal((5.5, 10.0), (4.5, 12.0)),
    ),
    (
        "the same, against puts/s through etcd's own client in Go",
        ("create_concurrent", "etcd_put_by_go", "commands_per_s"),
        _Goal((1.8, 4.0), (2.6, 6.0)),
    ),
    (
        "Submit in batches of 100, against puts/s in transactions of 128",
        ("submit_batches_100", "etcd_put_transactions", "commands_per_s"),
        _Goal((2.6, 4.0), (2.6, 4.0)),
    ),
    (
        "Submit in batches of 1000, against puts/s in transactions of 128",
        ("submit_batches_1000", "etcd_put_transactions", "commands_per_s"),
        _Goal((3.4, 6.0), (3.4, 6.0)),
    ),
    (
        "sequential CreateTopic on Submit, p50 against a put's",
        ("create_sequential", "etcd_put_sequential", "p50_ms"),
        _Goal((2.0, 1.0), (1.7, 1.0)),
    ),
    (
        "linearizable GetTopic, 256 callers through our client, against gets/s, client in Python",
        ("read_concurrent", "etcd_get_by_clients", "commands_per_s"),
        _Goal((3.0, 10.0), (3.0, 8.0)),
    ),
)

TARGETS: Final = (
    *(TargetRow(what, *compared, *goal.lone) for what, compared, goal in _AGAINST_ETCD),
    TargetRow(
        "CreateTopic, 256 callers through our client, p99 in ms",
        "create_concurrent",
        None,
        "p99_ms",
        must=10.0,
        aim=10.0,
    ),
)

# Three replicas beside three nodes of etcd.
REPLICATED_TARGETS: Final = tuple(
    TargetRow(f"3 replicas: {what}", *compared, *goal.three)
    for what, compared, goal in _AGAINST_ETCD
)

# The state: 1,000,000 partitions in 100,000 topics, 10,000 groups, 1,000 users.
SNAPSHOT_TARGETS: Final = (
    TargetRow("restart to the first command, s", "restart", None, "first_command_s", 3.5, 1.5),
    TargetRow("memory of all processes, MB", "memory", None, "total_mb", 800.0, 400.0),
    TargetRow("full snapshot, three copies, s", "full", None, "seconds", 2.0, 1.0),
    *(
        row
        for where in ("random", "clustered")
        for row in (
            TargetRow(
                f"1 % of topics changed, {where}: bytes, % of the full one's",
                f"{where}_1_percent",
                None,
                "bytes_percent",
                must=5.0,
                aim=2.0,
            ),
            TargetRow(
                f"1 % of topics changed, {where}: time, % of the full one's",
                f"{where}_1_percent",
                None,
                "seconds_percent",
                must=10.0,
                aim=4.0,
            ),
        )
    ),
    *(
        TargetRow(
            f"command p99 with {how} against without, {load} load",
            f"p99_{workload}_{load}",
            None,
            "p99_ratio",
            must=2.0,
            aim=1.2,
        )
        for how, workload in (
            ("continuous snapshots", "during"),
            ("a snapshot each second", "paced"),
        )
        for load in ("light", "saturated")
    ),
)

# Three replicas at default settings, their primary killed again and again.
FAILOVER_TARGETS: Final = (
    TargetRow(
        "no answer after a SIGKILL of the primary, worst, s",
        "failover",
        None,
        "worst_window_s",
        1.0,
        1.0,
    ),
    TargetRow(
        "no answer after a SIGKILL of the primary, median, s",
        "failover",
        None,
        "median_window_s",
        1.0,
        0.3,
    ),
)


def judge(target: TargetRow, rounds: Mapping[str, list[Figures]]) -> dict[str, Any]:
    """Return a row of the result: medians over the rounds, the ratio of each, and a verdict."""
    ours = [figures[target.figure] for figures in rounds[target.workload]]
    row = {"what": target.what, "must": target.must, "aim": target.aim, "median": median(ours)}
    if target.peer is None:
        measured = median(ours)
    else:
        peers = [figures[target.figure] for figures in rounds[target.peer]]
        # Ratios are taken in each round, because a slow period of the machine affects both systems.
        ratios = [one / other for one, other in zip(ours, peers, strict=True)]
        measured = median(ratios)
        row |= {"peer_median": median(peers), "ratios": [round(ratio, 3) for ratio in ratios]}
    is_lower_better = target.peer is None or target.figure.endswith("_ms")
    sign = -1 if is_lower_better else 1
    reached, excelled = (sign * measured >= sign * each for each in (target.must, target.aim))
    verdict = "aim" if excelled else "must" if reached else "missed"
    return row | {"measured": round(measured, 3), "verdict": verdict}
