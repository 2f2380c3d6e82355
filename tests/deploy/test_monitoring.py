"""Alert rules, runbooks and dashboards: each alert is provoked, each query has its metrics."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final, NamedTuple

import pytest
import yaml

from tests.deploy.pod import ROOT
from tests.deploy.promtool import (
    ALERTS,
    DASHBOARDS,
    documented_metrics,
    metrics_in,
    promtool,
    rules,
)

RUNBOOKS: Final = ROOT / "docs" / "runbooks"
ONE: Final = 'instance="a",job="viewstamp"'
SLOW: Final = {"0.05": "0+0x300", "0.1": "0+0x300", "5.0": "0+60x300", "+Inf": "0+60x300"}
FAST: Final = dict.fromkeys(SLOW, "0+60x300")
DAY_S: Final = 86_400


class Provoked(NamedTuple):
    """Series that provoke an alert, series that do not, and the minute by which it fires.

    `more_bad` and `more_good` are further kinds of both.
    """

    bad: dict[str, str]
    good: dict[str, str]
    minute: int = 20
    more_bad: tuple[dict[str, str], ...] = ()
    more_good: tuple[dict[str, str], ...] = ()

    def expected(self) -> list[tuple[dict[str, str], int]]:
        """Return each kind of series, and how often the alert fires for it."""
        bad = [(series, 1) for series in (self.bad, *self.more_bad)]
        return [*bad, *((series, 0) for series in (self.good, *self.more_good))]


def one(metric: str, bad: str, good: str, labels: str = "", minute: int = 20) -> Provoked:
    """Return an alert about one series; `bad` and `good` are its values from minute to minute."""
    series = f"{metric}{{{ONE}{labels}}}"
    return Provoked({series: bad}, {series: good}, minute)


def counted(metric: str, labels: str) -> Provoked:
    """Return an alert about a counter that grows, or whose series begins with its first count."""
    series = f"{metric}{{{ONE}{labels}}}"
    begins = {series: "_x9 1x40"}
    return Provoked({series: "0x9 1x40"}, {series: "7x40"}, 16, more_bad=(begins,))


def buckets(metric: str) -> Provoked:
    """Return an alert about a histogram whose durations are 0.1 to 5 s, or below 50 ms."""

    def series(values: dict[str, str]) -> dict[str, str]:
        return {
            f'{metric}_seconds_bucket{{{ONE},le="{bound}"}}': each for bound, each in values.items()
        }

    return Provoked(series(SLOW), series(FAST), 30)


def disk(bad: int, good: int) -> Provoked:
    """Return an alert about a disk of 100 bytes, with so many of them free."""
    where = f'{{{ONE},directory="data"}}'
    size = {f"viewstamp_filesystem_size_bytes{where}": "100x60"}
    free = f"viewstamp_filesystem_free_bytes{where}"
    return Provoked({free: f"{bad}x60", **size}, {free: f"{good}x60", **size}, 30)


def expiry(bad_s: int, good_s: int, minute: int) -> Provoked:
    """Return an alert about a certificate; time begins at 0."""
    metric, flag = "viewstamp_certificate_expiry_timestamp_seconds", ',flag="--tls-certificate"'
    return one(metric, f"{bad_s}x100", f"{good_s}x100", flag, minute)


SNAPSHOT: Final = f"viewstamp_snapshot_completed_timestamp_seconds{{{ONE}}}"
REVISION: Final = f"viewstamp_revision{{{ONE}}}"
OPEN, MOST, BUILD = (
    f"{name}{{{ONE}}}" for name in ("process_open_fds", "process_max_fds", "viewstamp_build_info")
)
OF_LOGINS: Final = 'viewstamp_logins_total{{job="viewstamp",instance="{0}",outcome="{1}"}}'
OF_VERSION: Final = 'viewstamp_build_info{{job="viewstamp",instance="{0}",version="{1}"}}'

PROVOKED: Final = {
    "ViewstampReplicaDown": one("up", "1x3 0x30", "1x40"),
    "ViewstampReplicaNotServing": one("viewstamp_serving", "1x3 0x30", "0x1 1x30"),
    "ViewstampNoPrimary": Provoked(
        {f'viewstamp_primary{{job="viewstamp",instance="{name}"}}': "0x40" for name in "abc"},
        {
            f'viewstamp_primary{{job="viewstamp",instance="{name}"}}': f"{int(name == 'b')}x40"
            for name in "abc"
        },
    ),
    "ViewstampManyViewChanges": one("viewstamp_view", "0+1x40", "0x10 2x30"),
    "ViewstampServiceAway": one("viewstamp_service_connected", "0x40", "1x40", ',stage="users"'),
    "ViewstampServiceRestarts": one(
        "viewstamp_service_restarts_total", "0+1x40", "0x10 1x30", ',stage="users"'
    ),
    "ViewstampReplicaBehind": one(
        "viewstamp_peer_lag_ops", "60000+100x60", "90000-500x60", ',replica="1"', 40
    ),
    "ViewstampReplicaSilent": one(
        "viewstamp_peer_silence_seconds", "0+60x40", "0x40", ',replica="1"'
    ),
    "ViewstampReplicaRefused": counted("viewstamp_refused_hellos_total", ',reason="other_cluster"'),
    "ViewstampClockWrong": one("viewstamp_clock_offset_seconds", "-6x40", "-4x40", ',replica="1"'),
    "ViewstampDiskFilling": disk(14, 16),
    "ViewstampDiskFull": disk(4, 6),
    "ViewstampSnapshotOld": Provoked(
        {SNAPSHOT: "60x400", REVISION: "0+1x400"},
        # Nothing changed, so none was due.
        {SNAPSHOT: "60x400", REVISION: "5x400"},
        300,
        # There never was one.
        more_bad=({SNAPSHOT: "0x400", REVISION: "0+1x400"},),
        more_good=(
            # A replica starts again, and has applied nothing for a moment.
            {SNAPSHOT: "60x400", REVISION: "5x250 0 5x400"},
            # A cluster is new.
            {SNAPSHOT: "_x200 0x200", REVISION: "_x200 1+1x200"},
        ),
    ),
    "ViewstampArchiveBehind": one("viewstamp_archive_lag_seconds", "301x40", "299x40"),
    "ViewstampArchiveGap": one("viewstamp_archive_gaps", "1x70 2x30", "1x100", minute=80),
    "ViewstampDamageStands": one(
        "viewstamp_scrub_standing", "0x5 1x90", "1x50 0x5 1x50", ',part="record"', 80
    ),
    "ViewstampSnapshotFailed": one(
        "viewstamp_snapshots_total", "0x5 1x40", "3x40", ',outcome="failed"'
    ),
    "ViewstampCertificateExpires": expiry(6 * DAY_S, 8 * DAY_S, 90),
    "ViewstampCertificateExpired": expiry(DAY_S // 2, 2 * DAY_S, 30),
    "ViewstampDiskSlow": buckets("viewstamp_journal_sync"),
    "ViewstampCommandsSlow": buckets("viewstamp_prepare"),
    "ViewstampQueueLong": one("viewstamp_queue_depth", "1001x40", "5000x3 0 5000x3 0x40"),
    "ViewstampAlarm": one("viewstamp_alarms", "1x40", "0x40", ',kind="ALARM_KIND_UNFIT"'),
    "ViewstampInternalErrors": counted(
        "viewstamp_commands_total", ',outcome="INTERNAL",rpc="CreateTopic"'
    )._replace(
        more_bad=(
            {f'viewstamp_commands_total{{{ONE},outcome="INTERNAL",rpc="CreateTopic"}}': "_x9 1x40"},
            {f'viewstamp_refusals_total{{{ONE},reason="INTERNAL"}}': "_x9 1x40"},
            {f'viewstamp_refusals_total{{{ONE},reason="INTERNAL"}}': "0x9 1x40"},
        ),
        more_good=({f'viewstamp_refusals_total{{{ONE},reason="RATE_LIMITED"}}': "_x9 1x40"},),
    ),
    "ViewstampLoginsFail": one(
        "viewstamp_logins_total", "0+25x40", "0+90x5 450x10 450+5x30", ',outcome="QUOTA_EXCEEDED"'
    )._replace(
        more_bad=(
            # Each replica alone has too few.
            {
                OF_LOGINS.format("a", "INVALID_CREDENTIALS"): "0+11x40",
                OF_LOGINS.format("b", "QUOTA_EXCEEDED"): "0+11x40",
            },
        ),
        more_good=({f'viewstamp_logins_total{{{ONE},outcome="ok"}}': "0+900x40"},),
    ),
    "ViewstampFilesRunOut": Provoked(
        {OPEN: "90x60", MOST: "100x60", BUILD: "1x60"},
        # Another program with as many open files is none of ours.
        {OPEN: "90x60", MOST: "100x60"},
        30,
    ),
    "ViewstampSpansDropped": one(
        "viewstamp_spans_dropped_total", "0+1x60", "4x60", ',to="files"', 40
    ),
    "ViewstampBuildsDiffer": Provoked(
        {OF_VERSION.format("a", "1"): "1x200", OF_VERSION.format("b", "2"): "1x200"},
        {OF_VERSION.format("a", "1"): "1x200", OF_VERSION.format("b", "1"): "1x200"},
        150,
    ),
}


def firing(alert: str, series: dict[str, str], minute: int, count: int) -> dict[str, Any]:
    """Return a test for promtool: so many firings of an alert at a minute."""
    query = f'count(ALERTS{{alertname="{alert}",alertstate="firing"}})'
    samples = [{"labels": "{}", "value": count}] if count else []
    return {
        "interval": "1m",
        "input_series": [{"series": name, "values": values} for name, values in series.items()],
        "promql_expr_test": [{"expr": query, "eval_time": f"{minute}m", "exp_samples": samples}],
    }


def judged(directory: Path, rule_file: Path, *alerts: str) -> str:
    """Return what promtool says of cases of the table; empty if each is as it should be.

    Each alert has files of its own: promtool evaluates all rules of a file for each test in it.
    """
    (group,) = yaml.safe_load(rule_file.read_text())["groups"]
    by_name = {rule["alert"]: rule for rule in group["rules"]}
    files = []
    for alert in alerts:
        case = PROVOKED[alert]
        rule = directory / f"{alert}.yaml"
        alone = {"groups": [{"name": "alone", "rules": [by_name[alert]]}]}
        rule.write_text(yaml.safe_dump(alone))
        tests = [firing(alert, series, case.minute, count) for series, count in case.expected()]
        document = {"rule_files": [str(rule)], "evaluation_interval": "1m", "tests": tests}
        files.append(directory / f"{alert}_test.yaml")
        files[-1].write_text(yaml.safe_dump(document))
    ended = promtool("test", "rules", *files)
    return "" if ended.returncode == 0 else ended.stdout + ended.stderr


def test_rules_are_valid() -> None:
    """Prometheus takes the rules, and the templates of their texts."""
    ended = promtool("check", "rules", ALERTS)
    assert ended.returncode == 0, ended.stderr
    assert f"{len(PROVOKED)} rules found" in ended.stdout


def test_each_alert_is_provoked(tmp_path: Path) -> None:
    """Each alert fires for its bad series, and is silent for its good ones."""
    assert {rule["alert"] for rule in rules()} == PROVOKED.keys()
    assert judged(tmp_path, ALERTS, *PROVOKED) == ""


@pytest.mark.parametrize(
    ("alert", "right", "wrong"),
    [
        ("ViewstampReplicaNotServing", "viewstamp_serving == 0", "viewstamp_serving == 2"),
        ("ViewstampSnapshotOld", "and viewstamp_revision > viewstamp_revision offset 3h", ""),
        (
            "ViewstampReplicaRefused",
            "or viewstamp_refused_hellos_total unless viewstamp_refused_hellos_total offset 10m",
            "",
        ),
        ("ViewstampFilesRunOut", "and on (instance, job) viewstamp_build_info", ""),
        ("ViewstampDiskFilling", "< 0.15", "< 0.5"),
        ("ViewstampLoginsFail", 'outcome=~"INVALID_CREDENTIALS|QUOTA_EXCEEDED"', 'outcome!=""'),
    ],
)
def test_a_wrong_rule_is_found(tmp_path: Path, alert: str, right: str, wrong: str) -> None:
    """A rule that never fires, or fires without need, fails its case."""
    text = ALERTS.read_text()
    assert text.count(right) == 1
    changed = tmp_path / "alerts.yaml"
    changed.write_text(text.replace(right, wrong))
    assert "FAILED" in judged(tmp_path, changed, alert)


def test_rules_use_metrics_that_exist() -> None:
    """Each metric of a rule is one that a page has; `up` is of Prometheus itself."""
    for rule in rules():
        named = metrics_in(rule["expr"])
        assert named <= documented_metrics(), rule["alert"]
        assert named or rule["expr"].startswith("up{"), rule["alert"]


def test_each_alert_has_a_runbook() -> None:
    """Each alert names its page, each page is of one alert, and each says what to do."""
    pages = {rule["annotations"]["runbook"]: rule for rule in rules()}
    present = {str(page.relative_to(ROOT)) for page in RUNBOOKS.glob("*.md")}
    assert present - {"docs/runbooks/README.md"} == pages.keys()
    index = (RUNBOOKS / "README.md").read_text()
    for page, rule in pages.items():
        text = (ROOT / page).read_text()
        assert text.startswith(f"# {rule['alert']}\n\n{rule['annotations']['summary']}\n"), page
        assert f"Severity: {rule['labels']['severity']}." in text, page
        headings = re.findall(r"^## (.*)$", text, re.MULTILINE)
        assert headings == ["What it means", "Causes", "What to look at", "What to do"], page
        assert f"| [{rule['alert']}]({Path(page).name}) | {rule['labels']['severity']} |" in index


def test_links_of_runbooks_lead_somewhere() -> None:
    """Every link of a runbook leads to a page, and to a heading of it where it names one."""
    for page in RUNBOOKS.glob("*.md"):
        for target in re.findall(r"\]\(([^)]+)\)", page.read_text()):
            path, _, anchor = target.partition("#")
            text = (page.parent / path).read_text()
            headings = re.findall(r"^#+ (.*)$", text, re.MULTILINE)
            anchors = {re.sub(r"[^\w -]", "", each.lower()).replace(" ", "-") for each in headings}
            assert not anchor or anchor in anchors, f"{page.name}: {target}"


def queries() -> Iterator[tuple[str, str]]:
    """Yield panel and query of each dashboard, variables included."""
    for file in sorted(DASHBOARDS.glob("*.json")):
        document = json.loads(file.read_text())
        for panel in document["panels"]:
            for target in panel.get("targets", ()):
                yield panel["title"], target["expr"]
        for variable in document["templating"]["list"]:
            if variable["type"] == "query":
                found = re.fullmatch(r"label_values\((.*), \w+\)", variable["query"])
                assert found is not None, variable
                yield variable["name"], found[1]


def test_queries_of_dashboards_are_valid(tmp_path: Path) -> None:
    """Prometheus takes each query, and each of its metrics is one that a page has."""
    found = list(queries())
    assert len(found) > 40
    for title, query in found:
        assert metrics_in(query), title
        assert metrics_in(query) <= documented_metrics(), title
    plain = [
        {"record": f"panel:{number}", "expr": query.replace("$__rate_interval", "5m")}
        for number, (_, query) in enumerate(found)
    ]
    file = tmp_path / "queries.yaml"
    file.write_text(yaml.safe_dump({"groups": [{"name": "queries", "rules": plain}]}))
    ended = promtool("check", "rules", file)
    assert ended.returncode == 0, ended.stderr


def test_dashboards_show_every_metric() -> None:
    """Each metric that is documented is on a dashboard or in a rule, or is listed here."""
    shown = {name for _, query in queries() for name in metrics_in(query)}
    shown |= {name for rule in rules() for name in metrics_in(rule["expr"])}
    assert documented_metrics() - shown == {
        *("process_virtual_memory_bytes", "process_start_time_seconds"),
        "viewstamp_spans_written_total",
    }


def test_panels_have_ids_and_do_not_overlap() -> None:
    """Grafana needs another id for each panel; no two panels cover the same place."""
    for file in DASHBOARDS.glob("*.json"):
        panels = json.loads(file.read_text())["panels"]
        assert len({panel["id"] for panel in panels}) == len(panels)
        places = [panel["gridPos"] for panel in panels]
        cells = [
            (x, y)
            for at in places
            for x in range(at["x"], at["x"] + at["w"])
            for y in range(at["y"], at["y"] + at["h"])
        ]
        assert len(cells) == len(set(cells))
        assert max(x for x, _ in cells) == 23
