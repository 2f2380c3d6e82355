"""Each check of `viewstamp doctor`: provoked once, and silent about a healthy cluster."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from typing import Any, Final

import pytest

from tests.tidy.tree import ROOT
from tests.viewstamp.doctor.healthy import (
    DIRECTORY,
    NOW_S,
    PAGE,
    PLACE,
    healthy,
    moment,
    snapshot,
)
from viewstamp.doctor.checks import CHECKS, Severity, findings
from viewstamp.doctor.evidence import DoctorEvidence, MetricSample

Change = Callable[[DoctorEvidence], object]


def of_replica(name: str, value: Any, number: int = 1) -> Change:
    """Change what replica 1 tells of a replica."""

    def change(evidence: DoctorEvidence) -> None:
        evidence.statuses["b:7400"]["replicas"][number][name] = value

    return change


def of_all(name: str, value: Any) -> Change:
    """Change what each replica tells of each."""

    def change(evidence: DoctorEvidence) -> None:
        for status in evidence.statuses.values():
            for replica in status["replicas"]:
                replica[name] = value

    return change


def measured(name: str, value: float, **labels: str) -> Change:
    """Change a number of the page; labels stand for those that it has."""

    def change(evidence: DoctorEvidence) -> None:
        (old,) = (sample for _, sample in evidence.samples(name))
        others = [sample for sample in evidence.metrics[PAGE] if sample != old]
        changed = MetricSample(name, {**old.labels, **labels}, value)
        evidence.metrics[PAGE] = [*others, changed]

    return change


def of_directory(name: str, value: Any) -> Change:
    """Change a fact about the data directory."""
    return lambda evidence: evidence.directories[DIRECTORY].update({name: value})


def of_archive(name: str, value: Any) -> Change:
    """Change what is known of the archive."""
    return lambda evidence: evidence.archives[PLACE].update({name: value})


def snapshots(*rows: dict[str, Any]) -> Change:
    """Change the catalog."""
    return lambda evidence: setattr(evidence, "snapshots", list(rows))


def first(name: str, value: Any) -> Change:
    """Change what the status of the first replica says."""
    return lambda evidence: evidence.statuses["a:7400"].update({name: value})


def log(text: str) -> Change:
    """Add a log."""
    return lambda evidence: evidence.logs.update({"users.log": text})


ALARM: Final = {"kind": "no_space", "message": "the disk is full", "since": moment(5)}
OLD: Final = snapshot(1, created_at=moment(4 * 3600))
LEVELS: Final = {"feature_level": 7}

# Check, what provokes it, where it is found, and words of what it says.
PROVOKED: Final[list[tuple[str, Change, str, str]]] = [
    ("source-failed", lambda e: e.failures.update({"d:1": "UNAVAILABLE: no"}), "d:1", "UNAVAIL"),
    ("no-primary", of_all("role", "backup"), "cluster", "no replica leads"),
    ("replica-not-serving", of_replica("status", "view_change"), "b:7400", "status view_change"),
    (
        "service-away",
        first("services", [{"stage": "users", "connected": False}]),
        "a:7400",
        "users does not answer",
    ),
    ("several-clusters", first("cluster", "c2"), "cluster", "2 clusters: c1, c2"),
    ("alarm", first("alarms", [ALARM]), "a:7400", "alarm NO_SPACE: the disk is full"),
    ("replica-unfit", of_replica("unfit", "its disk is full"), "b:7400", "its disk is full"),
    ("replica-behind", of_replica("lag", 50_001, 2), "b:7400", "replica 2 is 50001 ops behind"),
    ("link-broken", of_replica("link", "refused: mending", 2), "b:7400", "is refused: mending"),
    (
        "builds-differ",
        measured("viewstamp_build_info", 1, version="0.2.0"),
        "builds",
        "0.1.0, 0.2.0",
    ),
    ("snapshot-old", snapshots(OLD), "snapshots", "the newest is 4.0 hours old"),
    ("snapshot-old", snapshots(snapshot(1, "created")), "snapshots", "no completed snapshot"),
    (
        "snapshot-failed",
        snapshots(snapshot(1), snapshot(2, "failed", failure="read-only")),
        "snapshots",
        "generation 2 failed: read-only",
    ),
    ("archive-unreadable", of_archive("unreadable", "NO_ARCHIVE: nothing"), PLACE, "NO_ARCHIVE"),
    ("archive-of-another-cluster", of_archive("cluster", "c7"), PLACE, "of cluster c7, and not"),
    ("archive-gap", of_archive("gaps", [[4, 9]]), PLACE, "entries 4 to 9 were lost"),
    ("archive-gap", measured("viewstamp_archive_gaps", 2.0), PAGE, "the archive has 2 gaps"),
    (
        "archive-behind",
        of_archive("last_revision", 90),
        PLACE,
        "it lacks revisions 91 to 100; its newest entry is 60 minutes old",
    ),
    (
        "archive-behind",
        measured("viewstamp_archive_lag_seconds", 360.0),
        PAGE,
        "lacks an entry that is 6 minutes old",
    ),
    (
        "clock-wrong",
        measured("viewstamp_clock_offset_seconds", -6.0),
        PAGE,
        "the clock of replica 1 is -6.0 s off",
    ),
    (
        "certificate-expires",
        measured("viewstamp_certificate_expiry_timestamp_seconds", NOW_S + 86_400),
        f"{PAGE} --tls-certificate",
        "expires in 1.0 days",
    ),
    (
        "certificate-expires",
        lambda e: e.certificate_ends_s.update({"a:7400": NOW_S - 86_400}),
        "a:7400",
        "expired 1.0 days ago",
    ),
    ("disk-filling", of_directory("free_bytes", 14), DIRECTORY, "14 of 100 bytes are free"),
    (
        "disk-filling",
        measured("viewstamp_filesystem_free_bytes", 14.0),
        f"{PAGE} data",
        "14 of 100 bytes",
    ),
    (
        "disk-away",
        measured("viewstamp_filesystem_free_bytes", math.nan),
        f"{PAGE} data",
        "its file system does not answer",
    ),
    ("files-run-out", measured("process_open_fds", 900.0), PAGE, "900 of 1000 files are open"),
    ("no-data-directory", of_directory("is_replica", False), DIRECTORY, "there is no superblock"),
    ("no-process", of_directory("process", None), DIRECTORY, "no coordinator runs"),
    (
        "secret-readable",
        of_directory("files", {"cluster.key": {"mode": "-rw-r--r--", "bytes": 65}}),
        f"{DIRECTORY}/cluster.key",
        "every account of the machine can read it",
    ),
    (
        "configuration-wrong",
        lambda e: e.configurations["viewstamp.yaml"]["problems"].append("v.yaml:3: wrong"),
        "viewstamp.yaml",
        "v.yaml:3: wrong",
    ),
    (
        "errors-in-log",
        log('{"level": "error", "message": "lost"}\n{"level": "critical", "message": "end"}\n'),
        "users.log",
        "2 lines tell of errors; the last: end",
    ),
    (
        "errors-in-log",
        log('{"level": "error", "msg": "of another program"}\n{"level": "error"}\n'),
        "users.log",
        "2 lines tell of errors; the last: no message (no time)",
    ),
    (
        "feature-level-behind",
        lambda e: [status.update(LEVELS) for status in e.statuses.values()],
        "cluster",
        "level 7 is in force; all replicas know level 8",
    ),
    (
        "even-number-of-voters",
        lambda e: [status["replicas"].pop() for status in e.statuses.values()],
        "a:7400",
        "2 replicas vote",
    ),
]
# On a page of its own each lacks the number that it is compared with.
OPEN: Final = MetricSample("process_open_fds", {}, 5.0)
FREE: Final = MetricSample("viewstamp_filesystem_free_bytes", {"directory": "data"}, 5.0)
# What is no reason to say something.
INNOCENT: Final[dict[str, Change]] = {
    "old, but nothing changed": snapshots({**OLD, "cut_revision": 100}),
    "not asked for snapshots": lambda e: setattr(e, "snapshots", None),
    "a failed one before a good one": snapshots(snapshot(1, "failed"), snapshot(2)),
    "a primary that was not asked": lambda e: e.statuses.pop("a:7400"),
    "one build behind the others": of_replica("feature_level_max", 7),
    "lines that are no log": log('{"level": []}\n5\n' + "[" * 100_000),
    "a page of another program": lambda e: e.metrics.update(other=[OPEN, FREE]),
    "no sources at all": lambda e: e.__init__(NOW_S),  # type: ignore[misc]
}


def test_a_healthy_cluster_has_no_findings() -> None:
    """Nothing is said where nothing is wrong."""
    assert findings(healthy()) == []


@pytest.mark.parametrize("case", INNOCENT)
def test_innocent(case: str) -> None:
    """What looks like trouble and is none leads to no finding."""
    evidence = healthy()
    INNOCENT[case](evidence)
    assert findings(evidence) == []


@pytest.mark.parametrize(("check", "change", "place", "says"), PROVOKED)
def test_each_finding_is_provoked(check: str, change: Change, place: str, says: str) -> None:
    """What goes wrong is found by its check, at its place, in words, and by no other check."""
    evidence = healthy()
    change(evidence)
    (finding,) = findings(evidence)
    assert (finding.check, finding.place) == (check, place)
    assert says in finding.text


def test_every_check_is_provoked() -> None:
    """No check is left out above, and each has a name of its own."""
    names = [check.name for check in CHECKS]
    assert sorted({case[0] for case in PROVOKED}) == sorted(names)


def test_the_worst_comes_first() -> None:
    """Findings are in order of their severity."""
    evidence = healthy()
    for check, change, _, _ in PROVOKED:
        if check in ("feature-level-behind", "snapshot-old", "several-clusters"):
            change(evidence)
    found = [finding.severity for finding in findings(evidence)]
    assert found == sorted(found, key=list(Severity).index)
    assert {found[0], found[-1]} == {Severity.CRITICAL, Severity.HINT}


def test_next_steps_lead_somewhere() -> None:
    """Each page that a next step names exists, and has the heading that is named."""
    for check in CHECKS:
        for page, heading in re.findall(r"(docs/\S+\.md)(?:, ([^,]+)$)?", check.next_step):
            text = (ROOT / page).read_text()
            assert re.search(rf"^#+ {heading}$", text, re.MULTILINE) or not heading, check.name
