"""The benchmark of ten million partitions measures the right things, shown at a tiny size."""

from __future__ import annotations

import asyncio
import json
import os
from pathlib import Path

import pytest

from benchmarks import size as size_module
from benchmarks import state_forms
from benchmarks.size import CHANGED, LIMITS, PARTITIONS_PER_TOPIC, TOPICS, parse, run, size_of
from benchmarks.size_figures import last_spans, peak_mb
from benchmarks.size_transfers import transfer_in
from benchmarks.state_forms import DELTAS, RATES
from viewstamp.limits import TOPICS_PER_STREAM_MAX


def test_the_state_has_ten_million_partitions() -> None:
    """A million topics of ten partitions, in streams that have room for them."""
    size = size_of(TOPICS)
    assert (size.topics, size.topics * PARTITIONS_PER_TOPIC) == (1_000_000, 10_000_000)
    assert size.topics_per_stream <= TOPICS_PER_STREAM_MAX
    assert size_of(150).topics == 150


def test_the_last_span_of_each_name_counts(tmp_path: Path) -> None:
    """Durations are read from what a process has written, whatever the order of files and lines."""
    spans = [("cut", 5, 9), ("cut", 1, 2), ("adopt", 3, 4)]
    path = tmp_path / "coordinator" / "traces.jsonl"
    path.parent.mkdir()
    path.write_text(
        "".join(
            json.dumps({"resourceSpans": [{"scopeSpans": [{"spans": [span(*each)]}]}]}) + "\n"
            for each in spans
        )
    )
    assert last_spans(tmp_path) == {"cut": 4.0, "adopt": 1.0}


def span(name: str, begin_s: int, end_s: int) -> dict[str, object]:
    """Return a span as traces hold it."""
    second = 10**9
    return {
        "name": name,
        "startTimeUnixNano": str(begin_s * second),
        "endTimeUnixNano": str(end_s * second),
    }


def test_a_transfer_is_read_from_the_log(tmp_path: Path) -> None:
    """Its time and what came from whom; a log without one has no figures."""
    log = tmp_path / "coordinator.log"
    log.write_text('{"message": "ready"}\n')
    assert transfer_in(log) == {}
    done = {"fetched_bytes": 30, "fetched_from": {"0": 20, "1": 9}}
    lines = [
        {"time": "2026-01-01T00:00:01+00:00", "message": "state transfer began", "fields": {}},
        {
            "time": "2026-01-01T00:00:03.5+00:00",
            "message": "state transfer done: x",
            "fields": done,
        },
    ]
    log.write_text("".join(json.dumps(line) + "\n" for line in lines))
    assert transfer_in(log) == {
        "transfer_s": 2.5,
        "bytes": 30,
        "bytes_from_0": 20,
        "bytes_from_1": 9,
    }


def test_memory_has_a_peak() -> None:
    """The peak of this process is more than nothing."""
    assert peak_mb(os.getpid()) > 1


def test_forms_of_a_small_state(tmp_path: Path) -> None:
    """Layers write what changed, the others all of the state; each form is loaded and compared."""
    options = state_forms.parse(["--topics", "3000", "--rounds", "1", "--directory", str(tmp_path)])
    found = state_forms.run(options)["medians"]
    for rate in RATES:
        name = f"{rate / 100:g}_percent"
        assert found[f"layers_{name}"]["bytes"] < found[f"entities_{name}"]["bytes"]
        assert found[f"rows_{name}"]["bytes"] > 0
    assert found["layers_0.01_percent"]["bytes"] < found["layers_50_percent"]["bytes"] / 10
    assert found["load_layers"]["layers"] == DELTAS + 1
    assert found["load_base_alone"]["layers"] == 1
    assert {"load_entities", "load_rows"} < found.keys()


@pytest.mark.long
@pytest.mark.exhaustive
def test_a_tiny_cluster_is_measured(tmp_path: Path) -> None:
    """Every part has its figures, and a transfer from two peers brings what one from one does."""
    options = parse(["--topics", "300", "--rounds", "1", "--directory", str(tmp_path)])
    found = asyncio.run(run(options))
    rounds = found["medians"]
    for hundredths in CHANGED:
        assert rounds[f"changed_{hundredths / 100:g}_percent"]["bytes"] > 0
        assert rounds[f"changed_{hundredths / 100:g}_percent_beside_commands"]["commands"] > 0
    for limit in LIMITS:
        one, two = (rounds[f"transfer_from_{peers}_{limit // 1024}_kib_per_s"] for peers in (1, 2))
        assert one["bytes"] == two["bytes"] == one["bytes_from_0"]
        assert two["bytes_from_1"] > 0
    assert rounds["restart"]["first_command_s"] > 0
    assert rounds["blank_replica"]["ready_s"] > 0
    assert found["partitions"] == 3_000
    assert found["forms"].keys() > {"load_layers"}
    assert size_module.PARTS == ("lone", "transfer", "forms")
