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

    Without a peer the figure itself is judged, and lower is better.
    """

    what: str
    workload: str
    peer: str | None
    figure: str
    must: float
    aim: float


TARGETS: Final = (
    TargetRow(
        "CreateTopic, 256 callers through our client, against puts/s",
        "create_concurrent",
        "etcd_put_concurrent",
        "commands_per_s",
        must=4.0,
        aim=6.0,
    ),
    TargetRow(
        "the same with a client in Python on both sides, against puts/s",
        "create_concurrent",
        "etcd_put_by_clients",
        "commands_per_s",
        must=4.0,
        aim=6.0,
    ),
    TargetRow(
        "the same, p99 in ms",
        "create_concurrent",
        None,
        "p99_ms",
        must=10.0,
        aim=10.0,
    ),
    TargetRow(
        "Submit in batches of 100, against puts/s in transactions of 128",
        "submit_batches_100",
        "etcd_put_transactions",
        "commands_per_s",
        must=1.5,
        aim=2.0,
    ),
    TargetRow(
        "Submit in batches of 1000, against puts/s in transactions of 128",
        "submit_batches_1000",
        "etcd_put_transactions",
        "commands_per_s",
        must=2.5,
        aim=4.0,
    ),
    TargetRow(
        "raw unary CreateTopic, 256 in flight, no gateway processes, against puts/s",
        "create_unary",
        "etcd_put_concurrent",
        "commands_per_s",
        must=0.25,
        aim=0.6,
    ),
    TargetRow(
        "the same, against puts/s through a client in Python",
        "create_unary",
        "etcd_put_by_clients",
        "commands_per_s",
        must=0.25,
        aim=0.6,
    ),
    TargetRow(
        "sequential CreateTopic on Submit, p50 in ms",
        "create_sequential",
        None,
        "p50_ms",
        must=2.0,
        aim=1.4,
    ),
    TargetRow(
        "sequential CreateTopic, unary, p50 in ms",
        "create_sequential_unary",
        None,
        "p50_ms",
        must=2.0,
        aim=1.4,
    ),
    TargetRow(
        "linearizable GetTopic, 256 callers through our client, against gets/s",
        "read_concurrent",
        "etcd_get_concurrent",
        "commands_per_s",
        must=2.0,
        aim=4.0,
    ),
)

# Three replicas beside three nodes of etcd. Batches and reads have no budget of their own there:
# the ratios are those of one replica beside one node.
REPLICATED_TARGETS: Final = (
    TargetRow(
        "3 replicas: CreateTopic, 256 callers through our client, against puts/s",
        "create_concurrent",
        "etcd_put_concurrent",
        "commands_per_s",
        must=4.0,
        aim=7.0,
    ),
    TargetRow(
        "3 replicas: the same with a client in Python on both sides, against puts/s",
        "create_concurrent",
        "etcd_put_by_clients",
        "commands_per_s",
        must=4.0,
        aim=7.0,
    ),
    *(
        TargetRow(
            f"3 replicas: Submit in batches of {size}, against puts/s in transactions of 128",
            f"submit_batches_{size}",
            "etcd_put_transactions",
            "commands_per_s",
            must,
            aim,
        )
        for size, must, aim in ((100, 1.5, 2.0), (1000, 2.5, 4.0))
    ),
    *(
        TargetRow(
            f"3 replicas: sequential CreateTopic{how}, p50 in ms",
            workload,
            None,
            "p50_ms",
            3.0,
            2.0,
        )
        for how, workload in (
            (" on Submit", "create_sequential"),
            (", unary", "create_sequential_unary"),
        )
    ),
    TargetRow(
        "3 replicas: linearizable GetTopic, 256 callers through our client, against gets/s",
        "read_concurrent",
        "etcd_get_concurrent",
        "commands_per_s",
        must=2.0,
        aim=4.0,
    ),
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
        reached, excelled = measured <= target.must, measured <= target.aim
    else:
        peers = [figures[target.figure] for figures in rounds[target.peer]]
        # Ratios are taken in each round, because a slow period of the machine affects both systems.
        ratios = [one / other for one, other in zip(ours, peers, strict=True)]
        measured = median(ratios)
        reached, excelled = measured >= target.must, measured >= target.aim
        row |= {"peer_median": median(peers), "ratios": [round(ratio, 3) for ratio in ratios]}
    verdict = "aim" if excelled else "must" if reached else "missed"
    return row | {"measured": round(measured, 3), "verdict": verdict}
