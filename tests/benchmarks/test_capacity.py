"""The capacity guide says what was measured, and the manifests have room for it."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any, Final

import pytest
import yaml

from benchmarks.capacity import FORMULAS, NEW_PROCESS_MB, ClusterLoad, capacity, main, result

ROOT: Final = Path(__file__).parents[2]
GUIDE: Final = (ROOT / "docs" / "capacity.md").read_text()
MILLION: Final = ClusterLoad(partitions=1_000_000)
BYTES_OF: Final = {"Gi": 2**30, "Mi": 2**20}


@pytest.mark.parametrize(
    ("figure", "demand", "file", "places"),
    [
        ("streams_memory", MILLION, "snapshots", [("memory", "streams_mb")]),
        ("coordinator_memory", MILLION, "snapshots", [("memory", "coordinator_mb")]),
        ("full_snapshot_time", MILLION, "snapshots", [("full", "seconds")]),
        ("restart_time_at_most", MILLION, "snapshots", [("restart", "first_command_s")]),
        (
            "cpu_cores",
            ClusterLoad(commands=1e6),
            "commands_by_transport",
            [
                ("create_concurrent", f"{name}_cpu_us", "wire")
                for name in ("coordinator", "streams", "users", "consumer_groups")
            ],
        ),
    ],
)
def test_formulas_pass_through_what_was_measured(
    figure: str, demand: ClusterLoad, file: str, places: list[tuple[str, ...]]
) -> None:
    """For the load of a benchmark a formula gives what the benchmark found."""
    found: Any = json.loads((ROOT / "benchmarks" / "results" / f"{file}.json").read_text())
    total = 0.0
    for place in places:
        value = found["medians"]
        for name in place:
            value = value[name]
        total += value
    assert capacity(demand)[figure]["value"] == pytest.approx(total, abs=0.001)


def test_more_load_needs_more() -> None:
    """No slope is negative, and none is so small that nothing was measured."""
    for name, formula in FORMULAS.items():
        for field, measured in formula.slopes.items():
            assert measured.slope > 0, (name, field)


def test_new_processes_are_as_small_as_said() -> None:
    """A soak, which has little state, sees processes of about the size that the bases say."""
    for one in result("soak")["growth"]:
        name = one["process"].partition(" ")[0]
        if one["figure"] == "resident_bytes":
            assert one["median"] / 1e6 >= 0.8 * NEW_PROCESS_MB[name], one
            assert one["median"] / 1e6 <= 2.5 * NEW_PROCESS_MB[name], one


def test_examples_of_the_guide_are_true() -> None:
    """Each row of the guide's table has the figures of the calculator."""
    rows = re.findall(r"^\| `(--[^`]+ \d+)` \|(.+)\|$", GUIDE, re.MULTILINE)
    assert len(rows) >= 4
    for flags, cells in rows:
        demand = _demand_of(flags)
        found = capacity(demand)
        memory = sum(v["value"] for name, v in found.items() if name.endswith("_memory"))
        told = [cell.strip().replace(",", "") for cell in cells.split("|")]
        assert told == [
            f"{found['cpu_cores']['value']:.2f}",
            f"{memory:.0f}",
            f"{found['disk']['value']:.0f}",
            f"{found['full_snapshot_time']['value']:.2f}",
        ], flags


def _demand_of(flags: str) -> ClusterLoad:
    words = flags.split()
    values = dict(zip(words[::2], words[1::2], strict=True))
    return ClusterLoad(**{name[2:].replace("-", "_"): int(value) for name, value in values.items()})


def test_the_manifests_have_room() -> None:
    """The limits of the base hold a million partitions twice, and its volume their files."""
    stateful_set: Any = yaml.safe_load((ROOT / "deploy" / "base" / "stateful-set.yaml").read_text())
    pod = stateful_set["spec"]["template"]["spec"]
    needed = capacity(MILLION)
    for container in (*pod["containers"], *pod.get("initContainers", ())):
        name = container["name"].replace("-", "_")
        if name in NEW_PROCESS_MB:
            limit = _bytes(container["resources"]["limits"]["memory"])
            assert limit >= 2 * needed[f"{name}_memory"]["value"] * 1e6, name
    (claim,) = stateful_set["spec"]["volumeClaimTemplates"]
    room = _bytes(claim["spec"]["resources"]["requests"]["storage"])
    assert room >= 2 * needed["disk"]["value"] * 2**20


def _bytes(quantity: str) -> int:
    return int(quantity[:-2]) * BYTES_OF[quantity[-2:]]


def test_the_calculator_prints_json(capsys: pytest.CaptureFixture[str]) -> None:
    """Flags become a load; one below 0 is refused by name."""
    main(["--partitions", "5000", "--commands", "10.5"])
    printed = json.loads(capsys.readouterr().out)
    assert printed["demand"]["partitions"] == 5_000
    assert printed["replica"] == capacity(ClusterLoad(partitions=5_000, commands=10.5))
    with pytest.raises(SystemExit):
        main(["--command-bytes", "-1"])
    assert "--command-bytes is below 0" in capsys.readouterr().err
