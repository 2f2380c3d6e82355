"""What can be wrong, as a table: each check looks at evidence and says in words what it found."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from datetime import datetime
from enum import Enum
from typing import Final, NamedTuple

from viewstamp.doctor.evidence import DoctorEvidence, Json

LAG_OPS_MAX: Final = 50_000
CLOCK_OFFSET_MAX_S: Final = 5.0
SNAPSHOT_AGE_MAX_S: Final = 3 * 3600
ARCHIVE_LAG_MAX_S: Final = 300
CERTIFICATE_LEFT_MIN_S: Final = 7 * 86_400
FREE_SHARE_MIN: Final = 0.15
OPEN_FILES_SHARE_MAX: Final = 0.8
ODD_SIZES: Final = "3 or 5"
_READABLE_BY_ALL: Final = 7  # the place in `-rw-r--r--` that says it
_BAD_LEVELS: Final = frozenset(("error", "critical"))


class Severity(Enum):
    """How much a finding matters."""

    CRITICAL = "critical"
    WARNING = "warning"
    HINT = "hint"


class Check(NamedTuple):
    """One thing that can be wrong; `found` yields where and what, `next_step` says what to do."""

    name: str
    severity: Severity
    found: Callable[[DoctorEvidence], Iterable[tuple[str, str]]]
    next_step: str


@dataclass(frozen=True, slots=True)
class Finding:
    """Something that is wrong: where, what, and what to do."""

    check: str
    severity: Severity
    place: str
    text: str
    next_step: str

    def as_json(self) -> dict[str, str]:
        """Return it as a JSON value."""
        names = ("check", "place", "text", "next_step")
        return {"severity": self.severity.value, **{name: getattr(self, name) for name in names}}


def findings(evidence: DoctorEvidence) -> list[Finding]:
    """Return everything that is wrong, the worst first."""
    order = list(Severity)
    found = [
        Finding(check.name, check.severity, place, text, check.next_step)
        for check in CHECKS
        for place, text in check.found(evidence)
    ]
    return sorted(found, key=lambda finding: order.index(finding.severity))


Found = Iterator[tuple[str, str]]


def _replicas(evidence: DoctorEvidence) -> Iterator[tuple[str, Json]]:
    """Yield each replica as the others, or it itself, see it."""
    for address, status in evidence.statuses.items():
        for replica in status["replicas"]:
            yield address, replica


def _own(evidence: DoctorEvidence) -> Iterator[tuple[str, Json]]:
    """Yield each replica that answered, as it sees itself: it has no link to itself."""
    return (each for each in _replicas(evidence) if not each[1]["link"])


def _no_answer(evidence: DoctorEvidence) -> Found:
    yield from evidence.failures.items()


def _no_primary(evidence: DoctorEvidence) -> Found:
    own = [replica for _, replica in _own(evidence)]
    leads = any(each["role"] == "primary" and each["status"] == "normal" for each in own)
    everybody = {replica["replica_id"] for _, replica in _replicas(evidence)}
    if own and not leads and everybody == {replica["replica_id"] for replica in own}:
        yield "cluster", "no replica leads: writes are refused"


def _not_normal(evidence: DoctorEvidence) -> Found:
    for address, replica in _own(evidence):
        if replica["status"] != "normal":
            yield address, f"replica {replica['replica_id']} is in the status {replica['status']}"


def _unfit(evidence: DoctorEvidence) -> Found:
    for address, replica in _own(evidence):
        if replica["unfit"]:
            yield address, f"replica {replica['replica_id']} is unfit to lead: {replica['unfit']}"


def _behind(evidence: DoctorEvidence) -> Found:
    for address, replica in _replicas(evidence):
        if replica["lag"] > LAG_OPS_MAX:
            yield address, f"replica {replica['replica_id']} is {replica['lag']} ops behind"


def _link(evidence: DoctorEvidence) -> Found:
    for address, replica in _replicas(evidence):
        if replica["link"] not in ("", "connected"):
            yield address, f"the link to replica {replica['replica_id']} is {replica['link']}"


def _service_away(evidence: DoctorEvidence) -> Found:
    for address, status in evidence.statuses.items():
        for service in status["services"]:
            if not service["connected"]:
                yield address, f"the service {service['stage']} does not answer"


def _alarms(evidence: DoctorEvidence) -> Found:
    for address, status in evidence.statuses.items():
        for alarm in status["alarms"]:
            yield address, f"alarm {alarm['kind'].upper()}: {alarm['message']}"


def _clusters(evidence: DoctorEvidence) -> Found:
    named = {status["cluster"] for status in evidence.statuses.values()}
    if len(named) > 1:
        yield "cluster", f"the addresses are of {len(named)} clusters: {', '.join(sorted(named))}"


def _level_behind(evidence: DoctorEvidence) -> Found:
    own = {replica["replica_id"]: replica["feature_level_max"] for _, replica in _own(evidence)}
    in_force = max((each["feature_level"] for each in evidence.statuses.values()), default=0)
    everybody = {replica["replica_id"] for _, replica in _replicas(evidence)}
    if own and own.keys() == everybody and min(own.values()) > in_force:
        yield (
            "cluster",
            f"level {in_force} is in force; all replicas know level {min(own.values())}",
        )


def _builds(evidence: DoctorEvidence) -> Found:
    samples = evidence.samples("viewstamp_build_info")
    versions = {sample.labels.get("version", "unknown") for _, sample in samples}
    versions |= {evidence.versions["libraries"]["viewstamp"]} if evidence.versions else set()
    if len(versions) > 1:
        yield "builds", f"several builds are in use: {', '.join(sorted(versions))}"


def _even(evidence: DoctorEvidence) -> Found:
    for address, status in evidence.statuses.items():
        belonging = [each for each in status["replicas"] if each["status"] != "removed"]
        voters = sum(replica["role"] != "standby" for replica in belonging)
        if voters % 2 == 0:
            yield address, f"{voters} replicas vote: one fewer would stand as many failures"
            return


def _seconds(text: str) -> float:
    return datetime.fromisoformat(text).timestamp()


def _no_snapshot(evidence: DoctorEvidence) -> Found:
    if evidence.snapshots is None:
        return
    done = [each for each in evidence.snapshots if each["state"] == "completed"]
    if not done:
        yield "snapshots", "there is no completed snapshot: a restart replays the whole log"
        return
    newest = max(done, key=lambda each: int(each["generation"]))
    changed = max((each["revision"] for each in evidence.statuses.values()), default=0)
    age_s = evidence.now_s - _seconds(newest["created_at"])
    if age_s > SNAPSHOT_AGE_MAX_S and changed > newest["cut_revision"]:
        hours = age_s / 3600
        yield "snapshots", f"the newest is {hours:.1f} hours old, and something changed since"


def _failed_snapshot(evidence: DoctorEvidence) -> Found:
    newest = max(evidence.snapshots or (), key=lambda each: int(each["generation"]), default=None)
    if newest is not None and newest["state"] == "failed":
        yield "snapshots", f"generation {newest['generation']} failed: {newest['failure']}"


def _archive_unreadable(evidence: DoctorEvidence) -> Found:
    for place, facts in evidence.archives.items():
        if facts["unreadable"]:
            yield place, facts["unreadable"]


def _readable_archives(evidence: DoctorEvidence) -> Iterator[tuple[str, Json]]:
    return (each for each in evidence.archives.items() if not each[1]["unreadable"])


def _archive_of_another(evidence: DoctorEvidence) -> Found:
    clusters = {status["cluster"] for status in evidence.statuses.values()}
    for place, facts in _readable_archives(evidence):
        if clusters and facts["cluster"] not in clusters:
            yield place, f"it is of cluster {facts['cluster']}, and not of {', '.join(clusters)}"


def _archive_gap(evidence: DoctorEvidence) -> Found:
    for place, facts in _readable_archives(evidence):
        for first, last in facts["gaps"]:
            yield place, f"entries {first} to {last} were lost before they were shipped"
    for page, sample in evidence.samples("viewstamp_archive_gaps"):
        if sample.value > 0:
            yield page, f"the archive has {sample.value:.0f} gaps"


def _archive_behind(evidence: DoctorEvidence) -> Found:
    for place, facts in _readable_archives(evidence):
        own = [each for each in evidence.statuses.values() if each["cluster"] == facts["cluster"]]
        revision = max((each["revision"] for each in own), default=0)
        age_s = evidence.now_s - facts["last_time_s"]
        if revision > facts["last_revision"] and age_s > ARCHIVE_LAG_MAX_S:
            lacks = f"it lacks revisions {facts['last_revision'] + 1} to {revision}"
            yield place, f"{lacks}; its newest entry is {age_s / 60:.0f} minutes old"
    for page, sample in evidence.samples("viewstamp_archive_lag_seconds"):
        if sample.value > ARCHIVE_LAG_MAX_S:
            yield page, f"the archive lacks an entry that is {sample.value / 60:.0f} minutes old"


def _clock(evidence: DoctorEvidence) -> Found:
    for page, sample in evidence.samples("viewstamp_clock_offset_seconds"):
        if abs(sample.value) > CLOCK_OFFSET_MAX_S:
            yield (
                page,
                f"the clock of replica {sample.labels['replica']} is {sample.value:+.1f} s off",
            )


def _certificates(evidence: DoctorEvidence) -> Found:
    ends = [*evidence.certificate_ends_s.items()]
    for page, sample in evidence.samples("viewstamp_certificate_expiry_timestamp_seconds"):
        ends.append((f"{page} {sample.labels['flag']}", sample.value))
    for place, end_s in ends:
        left_s = end_s - evidence.now_s
        if left_s < 0:
            yield place, f"the certificate expired {-left_s / 86_400:.1f} days ago"
        elif left_s < CERTIFICATE_LEFT_MIN_S:
            yield place, f"the certificate expires in {left_s / 86_400:.1f} days"


def _disk_away(evidence: DoctorEvidence) -> Found:
    for page, sample in evidence.samples("viewstamp_filesystem_free_bytes"):
        if math.isnan(sample.value):
            yield f"{page} {sample.labels['directory']}", "its file system does not answer"


def _disk(evidence: DoctorEvidence) -> Found:
    rooms: dict[str, tuple[float, float]] = {
        place: (facts["free_bytes"], facts["size_bytes"])
        for place, facts in evidence.directories.items()
    }
    sizes = {
        (page, sample.labels["directory"]): sample.value
        for page, sample in evidence.samples("viewstamp_filesystem_size_bytes")
    }
    for page, sample in evidence.samples("viewstamp_filesystem_free_bytes"):
        name = sample.labels["directory"]
        rooms[f"{page} {name}"] = sample.value, sizes.get((page, name), math.nan)
    for place, (free_bytes, size_bytes) in rooms.items():
        if free_bytes < FREE_SHARE_MIN * size_bytes:  # never, if one is not known
            yield place, f"{free_bytes:,.0f} of {size_bytes:,.0f} bytes are free"


def _open_files(evidence: DoctorEvidence) -> Found:
    most = {page: sample.value for page, sample in evidence.samples("process_max_fds")}
    for page, sample in evidence.samples("process_open_fds"):
        if sample.value > OPEN_FILES_SHARE_MAX * most.get(page, math.inf):
            yield page, f"{sample.value:.0f} of {most[page]:.0f} files are open"


def _no_directory(evidence: DoctorEvidence) -> Found:
    for place, facts in evidence.directories.items():
        if not facts["is_replica"]:
            yield place, "no replica has its data there: there is no superblock"


def _no_process(evidence: DoctorEvidence) -> Found:
    for place, facts in evidence.directories.items():
        if facts["is_replica"] and facts["process"] is None:
            yield place, "no coordinator runs on the directory"


def _open_secrets(evidence: DoctorEvidence) -> Found:
    for place, facts in evidence.directories.items():
        for name in ("cluster.key", "root_password"):
            mode = facts["files"].get(name, {}).get("mode", "----------")
            if mode[_READABLE_BY_ALL] == "r":
                yield f"{place}/{name}", f"every account of the machine can read it ({mode})"


def _configuration(evidence: DoctorEvidence) -> Found:
    for place, report in evidence.configurations.items():
        for problem in report["problems"]:
            yield place, problem


def _errors(evidence: DoctorEvidence) -> Found:
    for path, text in evidence.logs.items():
        bad = [line for line in map(_read_line, text.splitlines()) if line["level"] in _BAD_LEVELS]
        if bad:
            # Other programs call it otherwise.
            said = bad[-1].get("message") or bad[-1].get("msg", "no message")
            last = f"{said} ({bad[-1].get('time', 'no time')})"
            yield path, f"{len(bad)} lines tell of errors; the last: {last}"


def _read_line(line: str) -> Json:
    try:
        found = json.loads(line)
    except (ValueError, RecursionError):
        return {"level": ""}  # others write there, too
    is_ours = isinstance(found, dict) and isinstance(found.get("level"), str)
    return found if is_ours else {"level": ""}


CHECKS: Final = (
    Check(
        "source-failed",
        Severity.CRITICAL,
        _no_answer,
        "start or reach what is named, or give its right address, path or login",
    ),
    Check(
        "no-primary",
        Severity.CRITICAL,
        _no_primary,
        "bring back replicas until a majority serves: docs/runbooks/no-primary.md",
    ),
    Check(
        "replica-not-serving",
        Severity.CRITICAL,
        _not_normal,
        "read its alarms: docs/runbooks/replica-not-serving.md",
    ),
    Check(
        "service-away",
        Severity.CRITICAL,
        _service_away,
        "read the log of the service and start it: docs/runbooks/service-away.md",
    ),
    Check("several-clusters", Severity.CRITICAL, _clusters, "give the addresses of one cluster"),
    Check(
        "alarm",
        Severity.WARNING,
        _alarms,
        "do what the alarm says: docs/operations.md, What to do when",
    ),
    Check(
        "replica-unfit",
        Severity.WARNING,
        _unfit,
        "remove the cause that is named: docs/operations.md, What to do when",
    ),
    Check(
        "replica-behind",
        Severity.WARNING,
        _behind,
        "see whether it catches up: docs/runbooks/replica-behind.md",
    ),
    Check(
        "link-broken",
        Severity.WARNING,
        _link,
        "repair the network, or correct the flag named: docs/runbooks/replica-silent.md",
    ),
    Check(
        "builds-differ", Severity.WARNING, _builds, "end the upgrade: docs/operations.md, Upgrades"
    ),
    Check(
        "snapshot-old",
        Severity.WARNING,
        _no_snapshot,
        "run `viewstamp snapshot create`: docs/runbooks/snapshot-old.md",
    ),
    Check(
        "snapshot-failed",
        Severity.WARNING,
        _failed_snapshot,
        "remove the cause, then take another: docs/runbooks/snapshot-failed.md",
    ),
    Check(
        "archive-unreadable",
        Severity.CRITICAL,
        _archive_unreadable,
        "read all of it: `viewstamp archive verify`; give the right place and key: docs/archive.md",
    ),
    Check(
        "archive-of-another-cluster",
        Severity.CRITICAL,
        _archive_of_another,
        "give each cluster a place of its own: docs/archive.md",
    ),
    Check(
        "archive-gap",
        Severity.WARNING,
        _archive_gap,
        "take a snapshot, which bridges it: docs/runbooks/archive-gap.md",
    ),
    Check(
        "archive-behind",
        Severity.WARNING,
        _archive_behind,
        "look why nobody ships: docs/runbooks/archive-behind.md",
    ),
    Check(
        "clock-wrong",
        Severity.WARNING,
        _clock,
        "correct the clock of that machine: docs/runbooks/clock-wrong.md",
    ),
    Check(
        "certificate-expires",
        Severity.WARNING,
        _certificates,
        "replace the files, without a restart: docs/runbooks/certificate-expires.md",
    ),
    Check(
        "disk-away",
        Severity.CRITICAL,
        _disk_away,
        "mount the file system again: docs/operations.md, What to do when",
    ),
    Check(
        "disk-filling",
        Severity.WARNING,
        _disk,
        "make room, and delete no journal segment: docs/runbooks/disk-filling.md",
    ),
    Check(
        "files-run-out",
        Severity.WARNING,
        _open_files,
        "raise the limit of open files: docs/runbooks/files-run-out.md",
    ),
    Check(
        "no-data-directory",
        Severity.WARNING,
        _no_directory,
        "give --data the directory of a replica, or that of `viewstamp up`",
    ),
    Check(
        "no-process",
        Severity.WARNING,
        _no_process,
        "start its replica, if it is to run on this machine",
    ),
    Check(
        "secret-readable",
        Severity.WARNING,
        _open_secrets,
        "chmod 600 the file, and replace the secret if others may have read it",
    ),
    Check(
        "configuration-wrong",
        Severity.WARNING,
        _configuration,
        "correct the file: `viewstamp config check FILE`",
    ),
    Check(
        "errors-in-log",
        Severity.WARNING,
        _errors,
        "read the log in the bundle; report a defect with it",
    ),
    Check(
        "feature-level-behind",
        Severity.HINT,
        _level_behind,
        "raise it once the upgrade is final: `viewstamp cluster feature-level --raise`",
    ),
    Check("even-number-of-voters", Severity.HINT, _even, f"run {ODD_SIZES} replicas that vote"),
)
