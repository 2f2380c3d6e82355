"""`viewstamp restore`: a new cluster from what a lost one has left. Needs the extra `server`."""

from __future__ import annotations

import json
import secrets
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, NoReturn

import typer

from viewstamp.cli import archive_options, restore_options
from viewstamp.cli.archive_source import ArchiveSource, archive_of
from viewstamp.cli.grammar import moment
from viewstamp.cli.options import DryRun
from viewstamp.cli.output import moment as shown_moment
from viewstamp.cli.output import print_table, printed
from viewstamp.cli.settings import EXIT_REFUSED, EXIT_USAGE, Settings, fail, settings_of
from viewstamp.cli.snapshot_options import progress_bar, warn
from viewstamp.limits import CLUSTER_ID_BYTES, SNAPSHOT_COPIES

_US_PER_S: Final = 1_000_000
# Another process, because it builds the state of the whole cluster with the programs of a server.
PROGRAM: Final = (sys.executable, "-m", "past.founding")
_STEPS: Final = {
    "snapshot": "reading the snapshot",
    "log": "applying the log",
    "sections": "writing the new snapshot",
    "replicas": "writing the other replicas",
    "check": "reading what was written",
}


def restore(
    context: typer.Context,
    source: restore_options.Source,
    into: restore_options.Into,
    replicas: restore_options.Replicas = 1,
    copies: restore_options.CopyDirectories = None,
    generation: restore_options.FromGeneration = 0,
    to_revision: restore_options.ToRevision = None,
    to_time: restore_options.ToTime = None,
    archive: restore_options.Archive = None,
    accept_gaps: restore_options.AcceptGaps = False,
    cluster_id: restore_options.ClusterId = None,
    only_replica: restore_options.OnlyReplica = None,
    snapshot_directory: restore_options.SnapshotDirectories = None,
    archive_key_file: archive_options.KeyFiles = None,
    accept_plain: archive_options.AcceptPlain = False,
    manifest: archive_options.ManifestNumber = 0,
    staging_bytes: archive_options.StagingBytes = None,
    dry_run: DryRun = False,
) -> None:
    """Found a new cluster from an archive, a snapshot, or one replica of a lost cluster.

    What an archive has for the end that is wanted is fetched to DIR.fetched first; a fetch that was
    cut short goes on where it was. A replica's directory has its snapshots and the log behind the
    newest; with --archive, the log before that, too. A snapshot alone ends at its cut. SOURCE is
    only read. The new cluster has another id, so that nothing of the lost one reaches it, and a new
    key. Users, passwords, streams, topics, groups and offsets are kept. Sessions, memberships,
    access tokens and personal access tokens end. Revisions and the numbers of new entities go on
    2^32 further, so that nothing that the lost cluster gave behind SOURCE is given again; watches
    from its revisions are told that they are compacted.

    Start it with `viewstamp up --data-directory DIR`, and --replicas if there are several.
    """
    settings = settings_of(context)
    _check_numbers(replicas, cluster_id, only_replica)
    _check_copies(snapshot_directory or [], is_one=replicas == 1 or only_replica is not None)
    asked = {
        "source": str(source),
        "copies": [str(path) for path in copies or ()],
        "generation": generation,
        "to_revision": to_revision,
        "to_time_us": None if to_time is None else int(moment(to_time).timestamp() * _US_PER_S),
        "archive": None if archive is None else str(archive),
        "accept_gaps": accept_gaps,
        "into": str(into),
        "replicas": replicas,
        "cluster_id": cluster_id or secrets.token_hex(CLUSTER_ID_BYTES),
        "only_replica": only_replica,
        "snapshot_directories": [str(path) for path in snapshot_directory or ()],
        "dry_run": dry_run,
    }
    report = _restored(
        settings,
        asked,
        archive_of(
            str(source), archive_key_file, manifest, staging_bytes, accept_plain=accept_plain
        ),
    )
    for text in report["bad_copies"]:
        warn(settings, "BAD_COPY", text)
    if not printed(settings, report, report["directories"]):
        _show(report)


def _restored(
    settings: Settings, asked: dict[str, Any], archive: ArchiveSource | None
) -> dict[str, Any]:
    """Fetch what an archive has, have the other process restore, and return its report."""
    if archive is None:
        return _run(settings, asked)
    staged = archive.fetch(settings, asked)
    report = _run(settings, asked | {"source": str(staged), "is_staged": True, "generation": 0})
    archive.tidy(settings, staged, is_written=report["is_written"])
    return report


def _check_numbers(replicas: int, cluster_id: str | None, only_replica: int | None) -> None:
    if only_replica is not None and only_replica >= replicas:
        raise typer.BadParameter(
            f"--only-replica {only_replica} is not one of {replicas} replicas: the first is 0"
        )
    if only_replica is not None and cluster_id is None and replicas > 1:
        raise typer.BadParameter("--only-replica needs --cluster-id, the same for every replica")
    digits = 2 * CLUSTER_ID_BYTES
    if cluster_id is not None and not _is_hexadecimal(cluster_id, digits):
        raise typer.BadParameter(f"--cluster-id {cluster_id!r} is not {digits} hexadecimal digits")


def _check_copies(directories: list[Path], *, is_one: bool) -> None:
    if not directories:
        return
    if not len({path.absolute() for path in directories}) == len(directories) == SNAPSHOT_COPIES:
        raise typer.BadParameter(
            f"--snapshot-directory is given for {len(directories)} copies: give {SNAPSHOT_COPIES}"
            " different ones, as to the coordinator, or none"
        )
    if not is_one:
        raise typer.BadParameter(
            "--snapshot-directory is for one replica: give --only-replica and --cluster-id, too"
        )


def _is_hexadecimal(text: str, digits: int) -> bool:
    return len(text) == digits and all(each in "0123456789abcdef" for each in text)


def _run(settings: Settings, asked: dict[str, Any]) -> dict[str, Any]:
    """Have the other process restore, show its progress, and return its report."""
    last: dict[str, Any] = {}
    command = [*PROGRAM, json.dumps(asked)]
    with (
        progress_bar(settings) as progress,
        subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process,
    ):
        show = _shower(progress)
        assert process.stdout is not None
        for line in process.stdout:
            last = json.loads(line)
            if "step" in last:
                show(last)
    if "report" not in last:
        _fail(settings, last, process.returncode)
    report: dict[str, Any] = last["report"]
    return report


def _fail(settings: Settings, last: dict[str, Any], exit_code: int) -> NoReturn:
    if "reason" not in last:
        fail(
            settings,
            "RESTORE_ENDED",
            f"the process that restores ended with {exit_code}, and said why above",
            "nothing was founded; the servers' programs are needed: pip install viewstamp[server]",
            exit_code=EXIT_REFUSED,
        )
    code = EXIT_USAGE if last["is_usage"] else EXIT_REFUSED
    fail(settings, last["reason"], last["message"], last["next_step"], exit_code=code)


def _shower(progress: Any) -> Callable[[dict[str, Any]], None]:
    tasks: dict[str, Any] = {}

    def show(told: dict[str, Any]) -> None:
        step = told["step"]
        if step not in tasks:
            tasks[step] = progress.add_task(_STEPS[step], total=told["total"])
        progress.update(tasks[step], completed=told["done"], total=told["total"])

    return show


def _show(report: dict[str, Any]) -> None:
    begun = report["generation"]
    rows = [
        ("cluster", report["cluster_id"] if report["is_written"] else "a new one"),
        ("from cluster", report["from_cluster_id"]),
        ("from snapshot", f"{begun}, revision {report['cut_revision']}" if begun else "none"),
        ("log entries behind it", report["log_entries"]),
        ("of those not known to be committed", report["unconfirmed_entries"]),
        ("newest revision that is kept", report["revision"]),
        ("its time", shown_moment(report["timestamp_us"])),
        ("next revision", report["next_revision"]),
        ("sessions that end", report["sessions_ended"]),
        ("memberships that end", report["memberships_ended"]),
        ("personal access tokens that end", report["tokens_ended"]),
    ]
    rows += [(name.replace("_", " "), n) for name, n in report["entities"].items()]
    values = [{"what": name, "value": value} for name, value in rows]
    is_written = report["is_written"]
    print_table(("what", "value"), values, "restored" if is_written else "would be restored")
    for first, last in report["missing_ops"]:
        typer.echo(f"lost: entries {first} to {last}, and all behind the first of them")
    typer.echo(
        f"lost: whatever happened behind revision {report['revision']},"
        f" {shown_moment(report['timestamp_us'])}"
    )
    if is_written:
        typer.echo(f"written: {', '.join(report['directories'])}")
    else:
        typer.echo("nothing was written")
