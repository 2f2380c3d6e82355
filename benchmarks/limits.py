"""Writes the tables of `docs/limits.md`: the worst cost of each RPC, and every limit.

Method: for each method that a machine of a domain serves, its most expensive request
(`benchmarks.limit_cases`) goes through the real machine in this process, once alone and once in the
largest possible request: as many of them as one request, one prepare or one read may hold. The
table describes in words the bound of each RPC that the coordinator serves itself. `--constants`
writes the limits alone, and `--check` says whether the tables name every RPC of the protos and
every limit with its value.
"""

from __future__ import annotations

import argparse
import ast
import gc
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Final

from google.protobuf import descriptor_pool
from google.protobuf.descriptor import MethodDescriptor

from benchmarks.limit_cases import Case, all_cases
from benchmarks.limit_drivers import METER, Cost
from benchmarks.limit_placements import placement_cases
from tools import generate
from viewstamp import limits, past_limits, routing

ROOT: Final = Path(__file__).resolve().parent.parent
DOCUMENT: Final = ROOT / "docs" / "limits.md"
BEGIN, END = "<!-- {} begin -->", "<!-- {} end -->"
# Framing and tags of one command in a request.
COMMAND_OVERHEAD_BYTES: Final = 4
# Reads in the largest request: with more, all are refused once the answers fill a message.
READS: Final = 1_000

STALE: Final = "the limits as they are: run `python -m benchmarks.limits --constants`"
_ONE_ENTITY: Final = "one entity of the coordinator"
_READ_OF_A_REPLICA: Final = "served by one replica beside the log"
_BETWEEN_PROCESSES: Final = "between our own processes; not for callers"

# The bound of each method that the coordinator serves itself, by the method's name.
IN_WORDS: Final = {
    **dict.fromkeys(
        ("RegisterSession", "ExpireSession", "CreateSnapshot", "DeleteSnapshot"), _ONE_ENTITY
    ),
    **dict.fromkeys(
        ("SetSnapshotRetention", "BeginSnapshot", "CompleteSnapshot", "FailSnapshot"), _ONE_ENTITY
    ),
    "EndSession": "one session and its kept replies: SESSION_WINDOW_REQUESTS",
    "PruneSnapshots": "the snapshots that are kept: SNAPSHOT_KEEP_LAST and SNAPSHOT_KEEP_DAILY",
    "RaiseFeatureLevel": _ONE_ENTITY,
    "SetClusterDescription": _ONE_ENTITY,
    "Sweep": "one step of work that was put off: SWEEP_ROWS_MAX",
    "Transact": "its parts, TRANSACTION_PARTS_MAX, which are charged as one command",
    "Submit": "its requests: REQUEST_COMMANDS_MAX, SESSION_WINDOW_REQUESTS and a user's shares",
    "ListSessions": "sessions of one user: SESSIONS_PER_USER_MAX",
    "ListUserSessions": "sessions of one user: SESSIONS_PER_USER_MAX",
    "GetStatus": f"{_READ_OF_A_REPLICA}; digests walk the state in slices",
    "ListAlarms": f"{_READ_OF_A_REPLICA}; one alarm for each kind and subject",
    "StepDown": f"{_READ_OF_A_REPLICA}; one view change",
    **dict.fromkeys(
        ("AddReplica", "PromoteReplica", "RemoveReplica"),
        f"{_READ_OF_A_REPLICA}; one entry that ends the epoch, one at a time",
    ),
    "BeginEpoch": _ONE_ENTITY,
    "DownloadSnapshot": f"{_READ_OF_A_REPLICA}; so many at a time, chunk by chunk",
    "VerifySnapshot": f"{_READ_OF_A_REPLICA}; so many at a time, file by file",
    **dict.fromkeys(
        ("GetCurrentSnapshot", "GetSnapshot", "ListSnapshots", "GetLatestSnapshot"),
        f"{_READ_OF_A_REPLICA}; the snapshots that are kept",
    ),
    "LookupGeneration": f"{_READ_OF_A_REPLICA}; one generation",
    **dict.fromkeys(("Describe", "Apply", "Normalize", "ReadSection"), _BETWEEN_PROCESSES),
    **dict.fromkeys(("Exchange", "Introduce", "ReadManifest", "ReadLayer"), _BETWEEN_PROCESSES),
    "BlameEntity": f"{_READ_OF_A_REPLICA}; a walk at a time: BLAME_WALK_MS and BLAME_PAGE_MAX",
    "Watch": f"{_READ_OF_A_REPLICA}; so many at a time, page by page: CHANGES_PAGE_MAX",
    "ListPartitions": "the runs of one topic: PARTITION_RUNS_PER_TOPIC_MAX",
    "CheckAccess": "one look at a user's permissions",
}

# The limits on a request of a method, beside the budgets that all commands have.
LIMITS_OF: Final = {
    "DeleteStream": "TOPICS_PER_STREAM_MAX",
    "DeleteTopic": "PARTITIONS_PER_TOPIC_MAX",
    "CreateTopic": "PARTITIONS_PER_REQUEST_MAX, REPLICAS_PER_PARTITION_MAX, BROKERS_MAX",
    "CreatePartitions": "PARTITIONS_PER_REQUEST_MAX, PARTITION_RUNS_PER_TOPIC_MAX",
    "DeletePartitions": "PARTITIONS_PER_REQUEST_MAX, PARTITION_RUNS_PER_TOPIC_MAX",
    "CreateUser": "COMMAND_BYTES_MAX, NORMALIZED_COMMANDS_MAX",
    "UpdatePermissions": "COMMAND_BYTES_MAX",
    "Login": "LOGINS_WAITING_MAX, LOGIN_FAILURES_PER_MINUTE_MAX",
    "HeartbeatConsumerGroup": "HEARTBEAT_PARTITIONS_MAX",
    "SyncConsumerGroup": "PARTITIONS_PAGE_MAX",
    "GetConsumerGroup": "PARTITIONS_PAGE_MAX",
    "DeleteConsumerGroup": "PARTITIONS_PER_TOPIC_MAX",
    **dict.fromkeys(
        ("CommitOffsets", "TruncatePartitions", "ReportPartitionEnds"), "OFFSETS_PER_REQUEST_MAX"
    ),
    **dict.fromkeys(
        ("ResetOffsets", "DeleteOffsets"), "OFFSETS_PER_REQUEST_MAX, PARTITIONS_PER_TOPIC_MAX"
    ),
    "RegisterBroker": "BROKER_ENDPOINTS_MAX, BROKERS_MAX",
    **dict.fromkeys(
        ("PlacePartitions", "UpdateInSync"),
        "PARTITIONS_PER_REQUEST_MAX, REPLICAS_PER_PARTITION_MAX",
    ),
    "FetchOffsets": "OFFSETS_PAGE_MAX",
    "FindOffsets": "OFFSETS_PAGE_MAX",
    "ListWatermarks": "OFFSETS_PAGE_MAX",
}
_OF_COMMANDS: Final = "COMMAND_ROWS_MAX"
_OF_READS: Final = "MESSAGE_BYTES_MAX"
_OF_PAGES: Final = "PAGE_SIZE_MAX"
# Methods whose pages have a limit of their own.
_OWN_PAGES: Final = frozenset(
    {"SyncConsumerGroup", "FetchOffsets", "FindOffsets", "ListWatermarks"}
)

_SUFFIX_UNITS: Final = {
    "_BYTES": "bytes",
    "_MS": "ms",
    "_US": "µs",
    "_ROWS": "rows",
    "_PERCENT": "%",
}


@dataclass(frozen=True, slots=True)
class Limit:
    """One constant of a module of limits."""

    name: str
    value: str
    unit: str
    comment: str


def methods() -> list[MethodDescriptor]:
    """Return every RPC of the protos, by full name."""
    pool = descriptor_pool.DescriptorPool()
    files = generate.descriptor_set(ROOT / "protos").file
    for file in files:
        pool.Add(file)
    found = (
        method
        for file in files
        for service in pool.FindFileByName(file.name).services_by_name.values()
        for method in service.methods
    )
    return sorted(found, key=lambda method: method.full_name)


def all_limits() -> list[Limit]:
    """Return every limit in the order of the modules, with the comment above it."""
    return [*limits_of(limits), *limits_of(past_limits)]


def limits_of(module: ModuleType) -> list[Limit]:
    """Return the limits of a module in its order."""
    source = Path(str(module.__file__)).read_text()
    lines = source.splitlines()
    return [
        Limit(name, *_shown(name, getattr(module, name)), _comment(lines, node.lineno - 1))
        for node in ast.parse(source).body
        if isinstance(node, ast.AnnAssign) and (name := ast.unparse(node.target)).isupper()
    ]


def limits_table() -> str:
    """Return the table of limits."""
    rows = ["| limit | value | unit | |", "|---|--:|---|---|"]
    rows += [
        f"| `{each.name}` | {each.value} | {each.unit} | {each.comment} |" for each in all_limits()
    ]
    return "\n".join(rows)


def costs_table() -> str:
    """Measure, and return the table of costs."""
    METER.install()
    # Where a case is in both, the one with brokers is more expensive.
    cases = all_cases() | placement_cases()
    rows = [
        "| RPC | | rows | answer, bytes | ms | in the largest request | rows | answer, bytes | ms |"
        " bounded by |",
        "|---|---|--:|--:|--:|--:|--:|--:|--:|---|",
    ]
    rows += [_cost_row(method, cases.get(method.name)) for method in methods()]
    return "\n".join(rows)


def missing(text: str) -> list[str]:
    """Return the RPCs and limits that a document lacks, and the values that have changed."""
    costs, constants = (_between(text, name) for name in ("costs", "limits"))
    lacking = [method.full_name for method in methods() if f"| `{_short(method)}` |" not in costs]
    return lacking if constants == limits_table() else [*lacking, STALE]


def write(text: str, name: str, table: str) -> str:
    """Return the document with another table between its markers."""
    begin, end = BEGIN.format(name), END.format(name)
    head, _, rest = text.partition(begin)
    _, _, tail = rest.partition(end)
    return f"{head}{begin}\n{table}\n{end}{tail}"


def _between(text: str, name: str) -> str:
    rest = text.partition(BEGIN.format(name))[2]
    return rest.partition(END.format(name))[0].strip("\n")


def _short(method: MethodDescriptor) -> str:
    return f"{method.containing_service.name}.{method.name}"


def _cost_row(method: MethodDescriptor, case: Case | None) -> str:
    name = method.name
    if case is None:
        return f"| `{_short(method)}` | | | | | | | | | {IN_WORDS[name]} |"
    routed = case.driver.methods[name]
    is_command = routed.kind is routing.MethodKind.COMMAND
    one = case.driver.measure(case.requests(1), **case.how)
    largest = case.driver.measure(case.requests(_count(routed, case)), **case.how)
    gc.collect()
    bounds = [LIMITS_OF.get(name, ""), _OF_COMMANDS if is_command else _OF_READS]
    if name not in _OWN_PAGES and "page_size" in method.input_type.fields_by_name:
        bounds.insert(0, _OF_PAGES)
    told = ", ".join(f"{bound}" for bound in bounds if bound)
    kind = routed.kind.value if not routed.internal else "internal"
    return f"| `{_short(method)}` | {kind} | {_told(one)} | {_largest(largest)} | {told} |"


def _told(cost: Cost) -> str:
    return f"{cost.rows:,} | {cost.answer_bytes:,} | {cost.milliseconds:.1f}"


def _largest(cost: Cost) -> str:
    refused = f", {cost.refused:,} refused" if cost.refused else ""
    return f"{cost.count:,}{refused} | {_told(cost)}"


def _count(method: routing.Method, case: Case) -> int:
    """Return how many of a case the largest request holds."""
    size = case.request(0).ByteSize() + COMMAND_OVERHEAD_BYTES
    count = min(limits.REQUEST_COMMANDS_MAX, limits.PREPARE_BODY_BYTES_MAX // size)
    if method.normalize:
        return min(count, limits.NORMALIZED_COMMANDS_MAX)
    if method.public or method.internal:
        return 1  # never packed
    return count if method.kind is routing.MethodKind.COMMAND else min(count, READS)


def _shown(name: str, value: object) -> tuple[str, str]:
    """Return a value and its unit."""
    if isinstance(value, int | float):
        return f"{value:,}", _unit(name)
    if isinstance(value, Mapping):
        return ", ".join(f"{key}: {row}" for key, row in value.items()) or "none", ""
    return str(value), ""


def _unit(name: str) -> str:
    stem = name
    for suffix in ("_MAX", "_MIN", "_NEAR", "_EXPECTED", "_PER_USER", "_PER_SESSION"):
        stem = stem.replace(suffix, "")
    return next((unit for suffix, unit in _SUFFIX_UNITS.items() if stem.endswith(suffix)), "")


def _comment(lines: list[str], at: int) -> str:
    return " ".join(reversed(list(_comment_lines(lines, at)))).replace("|", "\\|")


def _comment_lines(lines: list[str], at: int) -> Iterator[str]:
    """Yield the comment above a line, from its end."""
    while at and lines[at - 1].startswith("# ") and not lines[at - 1].startswith("# ---"):
        at -= 1
        yield lines[at].removeprefix("# ")


def main() -> int:
    """Write the tables, or check them."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="write nothing")
    parser.add_argument("--constants", action="store_true", help="measure nothing")
    chosen = parser.parse_args()
    text = DOCUMENT.read_text()
    if chosen.check:
        lacking = missing(text)
        for name in lacking:
            print(f"{DOCUMENT.name} lacks {name}", file=sys.stderr)
        return 1 if lacking else 0
    if not chosen.constants:
        text = write(text, "costs", costs_table())
    DOCUMENT.write_text(write(text, "limits", limits_table()))
    return 0


if __name__ == "__main__":
    sys.exit(main())
