"""The verdicts of benchmarks on figures, and their requests to etcd."""

from __future__ import annotations

import time

import pytest

from benchmarks.commands import COMPARED, in_turns, parse, portable
from benchmarks.etcd_client import PutRequest, RangeRequest, RequestOp, TxnRequest
from benchmarks.etcd_go import PUT_BY_GO
from benchmarks.load import WORKLOADS
from benchmarks.load_etcd import Puts
from benchmarks.load_target import NUMBER_DIGITS, TRANSACTION_PUTS, LoadTopics
from benchmarks.targets import Figures, TargetRow, judge
from benchmarks.wire import Samples, header_block
from viewstamp.framing import unframe
from viewstamp.limits import TOPICS_PER_STREAM_MAX

Rounds = dict[str, list[Figures]]

RATIO = TargetRow("ours against theirs", "ours", "etcd_theirs", "commands_per_s", must=2.0, aim=4.0)
LATENCY = TargetRow("ours, p50", "ours", None, "p50_ms", must=2.0, aim=1.4)


@pytest.mark.parametrize(
    ("ours", "verdict"), [(199.0, "missed"), (200.0, "must"), (399.0, "must"), (400.0, "aim")]
)
def test_ratio_is_judged_from_below(ours: float, verdict: str) -> None:
    """More is better: a ratio reaches what it equals."""
    rounds: Rounds = {
        "ours": [{"commands_per_s": ours}],
        "etcd_theirs": [{"commands_per_s": 100.0}],
    }
    assert judge(RATIO, rounds)["verdict"] == verdict


@pytest.mark.parametrize(("ours", "verdict"), [(2.1, "missed"), (2.0, "must"), (1.4, "aim")])
def test_latency_is_judged_from_above(ours: float, verdict: str) -> None:
    """Less is better where there is no peer."""
    assert judge(LATENCY, {"ours": [{"p50_ms": ours}]})["verdict"] == verdict


@pytest.mark.parametrize(("ours", "verdict"), [(4.2, "missed"), (4.0, "must"), (2.8, "aim")])
def test_ratio_of_latencies_is_judged_from_above(ours: float, verdict: str) -> None:
    """Less is better for a time, also where it is compared with a peer's."""
    row = TargetRow("p50 against theirs", "ours", "etcd_theirs", "p50_ms", must=2.0, aim=1.4)
    rounds: Rounds = {"ours": [{"p50_ms": ours}], "etcd_theirs": [{"p50_ms": 2.0}]}
    assert judge(row, rounds)["verdict"] == verdict


def test_ratios_are_taken_round_by_round() -> None:
    """The median is that of the rounds' ratios, not the ratio of medians."""
    ours: list[Figures] = [{"commands_per_s": figure} for figure in (100.0, 900.0, 300.0)]
    theirs: list[Figures] = [{"commands_per_s": figure} for figure in (100.0, 100.0, 300.0)]
    row = judge(RATIO, {"ours": ours, "etcd_theirs": theirs})
    assert (row["ratios"], row["measured"]) == ([1.0, 9.0, 1.0], 1.0)


def test_systems_are_measured_in_turns() -> None:
    """Ours and etcd's alternate, and the rest of the longer list follows."""
    assert list(in_turns(["a", "b", "c", "etcd_x"])) == ["a", "etcd_x", "b", "c"]


def test_command_lines_name_no_directory_of_this_machine() -> None:
    """A stored command line keeps the last names of absolute paths."""
    assert portable(["/some/where/python", "-m", "benchmarks.load"]) == [
        "python",
        "-m",
        "benchmarks.load",
    ]


def test_requests_to_etcd_have_its_field_numbers() -> None:
    """Key 1, value 2; a transaction's operations are its field 2, a put in one is field 2."""
    put = PutRequest(key=b"k", value=b"v")
    assert put.SerializeToString() == b"\x0a\x01k\x12\x01v"
    transaction = TxnRequest(success=[RequestOp(request_put=put)])
    assert transaction.SerializeToString() == b"\x12\x08\x12\x06\x0a\x01k\x12\x01v"
    # A range that is not serializable is linearizable, which is the default.
    assert RangeRequest(key=b"k").SerializeToString() == b"\x0a\x01k"


def test_header_block_is_plain_hpack() -> None:
    """Indexed method and scheme, then literals that are not added to the dynamic table."""
    block = header_block("/s/m", "host:1", "secret")
    assert block.startswith(b"\x83\x86\x04\x04/s/m\x01\x06host:1\x0f\x10\x10application/grpc")
    assert block.endswith(b"\x00\x02te\x08trailers\x0f\x08\x0dBearer secret")


@pytest.mark.parametrize("request_bytes", [0, 256])
def test_topics_differ_in_name_alone(request_bytes: int) -> None:
    """Requests have one size, as asked or with a name of 32 bytes, and names never repeat."""
    topics = LoadTopics([7], request_bytes)
    requests = [topics.request() for _ in range(3)]
    assert len({request.name for request in requests}) == 3
    sizes = {request.ByteSize() if request_bytes else len(request.name) for request in requests}
    assert sizes == {request_bytes or 32}


@pytest.mark.parametrize("size", [1, 100, TOPICS_PER_STREAM_MAX + 1])
def test_batches_hold_the_same_topics(size: int) -> None:
    """Batches, which are made of copies, hold the same requests as single ones, across streams."""
    singles, batches = (LoadTopics([7, 8_000, 9], request_bytes=0) for _ in range(2))
    for _ in range(2):
        assert unframe(batches.framed(size)) == [singles.encoded() for _ in range(size)]
    with pytest.raises(RuntimeError, match="make more streams"):
        batches.framed(3 * TOPICS_PER_STREAM_MAX)


def test_transactions_hold_the_same_puts() -> None:
    """A transaction, which is made of copies, holds the same puts as single requests."""
    puts = Puts()
    before = puts.request()
    made = [
        operation.request_put
        for _ in range(2)
        for operation in TxnRequest.FromString(puts.encoded_transaction()).success
    ]
    numbers = [int(put.key.removeprefix(before.key[:-NUMBER_DIGITS])) for put in made]
    assert numbers == list(range(1, 2 * TRANSACTION_PUTS + 1))
    assert {put.value for put in made} == {before.value}


def test_only_what_lies_within_the_time_counts() -> None:
    """Answers while warming up, or after the end, are not samples."""
    samples = Samples(warm_up_s=1.0, duration_s=2.0, started=time.perf_counter())
    for offset_s in (0.5, 1.0, 2.9, 3.0):
        samples.add(samples.started, samples.started + offset_s, commands=10)
    assert (len(samples.latencies_s), samples.commands) == (2, 20)


def test_a_comparison_asks_for_no_load_that_needs_preparation(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """`make benchmark` measures a new cluster, which has none of what watchers follow."""
    monkeypatch.setattr("sys.argv", ["commands", "--with-go"])
    options = parse()
    assert set(options.only) == {*COMPARED, PUT_BY_GO}
    assert set(COMPARED) == set(WORKLOADS) - {"update_unary"}
    monkeypatch.setattr("sys.argv", ["commands", "--only", "update_unary"])
    with pytest.raises(SystemExit):
        parse()
