"""`viewstamp archive`: what is in an archive, whether it is whole, and how it gets there."""

from __future__ import annotations

import signal
import threading
import time
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import typer

from viewstamp.archive.object_store import STORE_ATTEMPTS_MAX, STORE_TIMEOUT_MS
from viewstamp.archive.shipping_defaults import PIECE_AGE_MS, PIECE_BYTES, SPOOL_BYTES_MAX
from viewstamp.cli import archive_options
from viewstamp.cli.archive_options import opened_chain
from viewstamp.cli.grammar import duration_us
from viewstamp.cli.output import moment, print_table, printed, printed_lines
from viewstamp.cli.settings import EXIT_CHANGES, Settings, settings_of
from viewstamp.cli.snapshot_options import progress_bar, telling

if TYPE_CHECKING:
    from viewstamp.archive.archive_check import ArchiveVerdict, Told
    from viewstamp.archive.retention import Retention
    from viewstamp.archive.shipping_loop import RoundTold
    from viewstamp.format.archive_manifest import ArchiveManifest

app = typer.Typer(
    help="Ship the log and the snapshots of a replica to an archive, and look into one.",
    no_args_is_help=True,
)
OWNER_STEP: Final = "run it as the user who owns the directories"
US_PER_MS: Final = 1_000
NS_PER_US: Final = 1_000
NS_PER_MS: Final = 1_000_000
MS_PER_S: Final = 1_000
_STEPS: Final = {
    "snapshots": "reading snapshots",
    "log": "reading the log",
    "layers": "fetching the snapshot",
    "pieces": "fetching the log",
}


@app.command("list")
def show_archive(
    context: typer.Context,
    place: archive_options.Place,
    archive_key_file: archive_options.KeyFiles = None,
    manifest: archive_options.ManifestNumber = 0,
) -> None:
    """Show what an archive holds, as its newest manifest says.

    Reads nothing but manifests: `viewstamp archive verify` reads everything.
    """
    settings = settings_of(context)
    with telling(settings, OWNER_STEP):
        found = opened_chain(place, archive_key_file, accept_plain=True).wanted(manifest).manifest
    if not printed(settings, _listed(found)):
        _show_listed(found)


@app.command("verify")
def verify_archive(
    context: typer.Context,
    place: archive_options.Place,
    archive_key_file: archive_options.KeyFiles = None,
    accept_plain: archive_options.AcceptPlain = False,
    manifest: archive_options.ManifestNumber = 0,
    store_timeout_ms: archive_options.TimeoutMs = STORE_TIMEOUT_MS,
    store_attempts: archive_options.Attempts = STORE_ATTEMPTS_MAX,
) -> None:
    """Read every object of an archive, and tell what is missing and what can be restored.

    Exits with 5 if anything is missing or damaged, or the log has a gap.
    """
    from viewstamp.archive.archive_check import check_archive_objects

    settings = settings_of(context)
    with telling(settings, OWNER_STEP), progress_bar(settings) as progress:
        chain = opened_chain(
            place,
            archive_key_file,
            accept_plain=accept_plain,
            timeout_ms=store_timeout_ms,
            attempts=store_attempts,
        )
        found = chain.wanted(manifest).manifest
        verdict = check_archive_objects(chain.objects, found, shower(progress))
    if not printed(settings, _verdict(verdict)):
        _show_verdict(verdict)
    if not verdict.is_whole:
        raise typer.Exit(EXIT_CHANGES)


@app.command("ship")
def ship_archive(
    context: typer.Context,
    to: archive_options.Target,
    data: archive_options.Data = Path("data"),
    copies: archive_options.CopyDirectories = None,
    archive_key_file: archive_options.KeyFiles = None,
    accept_plain: archive_options.AcceptPlain = False,
    follow: archive_options.Follow = False,
    as_backup: archive_options.AsBackup = False,
    piece_bytes: archive_options.PieceBytes = PIECE_BYTES,
    piece_age_ms: archive_options.PieceAge = PIECE_AGE_MS,
    spool_bytes: archive_options.SpoolBytes = SPOOL_BYTES_MAX,
    keep_snapshots: archive_options.KeepSnapshots = 0,
    keep_for: archive_options.KeepFor = None,
    grace: archive_options.Grace = None,
    store_timeout_ms: archive_options.TimeoutMs = STORE_TIMEOUT_MS,
    store_attempts: archive_options.Attempts = STORE_ATTEMPTS_MAX,
) -> None:
    """Ship what is committed and not in the archive yet: once, or with --follow until Ctrl-C.

    Reads the data directory beside its replica, running or not, and writes nothing there but
    second names of segments, in archive-spool. An entry is shipped once a later one of the log
    proves that it is committed. With --follow a replica ships while it is the primary; another one
    takes over when an entry has waited for a minute.
    """
    from viewstamp.archive.shipper import ShipOptions, Shipper

    settings = settings_of(context)
    options = ShipOptions(
        data=data,
        copies=tuple(copies or ()),
        piece_bytes=piece_bytes,
        piece_age_ms=piece_age_ms,
        spool_bytes_max=spool_bytes,
        retention=_retention(keep_snapshots, keep_for, grace),
    )
    with telling(settings, OWNER_STEP):
        chain = opened_chain(
            to,
            archive_key_file,
            accept_plain=accept_plain,
            timeout_ms=store_timeout_ms,
            attempts=store_attempts,
        )
        with Shipper(options, chain, wall_us, now_ms) as shipper:
            if follow:
                _follow(settings, shipper, as_backup=as_backup)
                return
            report = shipper.round(is_last=True)
    shown = asdict(report) | {"lag_ops": report.lag_ops}
    if not printed(settings, shown):
        rows = [{"what": name.replace("_", " "), "value": value} for name, value in shown.items()]
        print_table(("what", "value"), rows, "shipped")


def wall_us() -> int:
    """Return the time, microseconds since 1970."""
    return time.time_ns() // NS_PER_US


def now_ms() -> int:
    """Return milliseconds on a clock that never jumps."""
    return time.monotonic_ns() // NS_PER_MS


def _retention(keep_snapshots: int, keep_for: str | None, grace: str | None) -> Retention:
    from viewstamp.archive.retention import GRACE_MS, GRACE_MS_MIN, KEEP_MS, Retention

    grace_ms = GRACE_MS if grace is None else duration_us(grace) // US_PER_MS
    if grace_ms < GRACE_MS_MIN:
        raise typer.BadParameter(
            f"--grace {grace} is shorter than {GRACE_MS_MIN // MS_PER_S} s: whoever reads the"
            " archive would lose what it reads"
        )
    keep_ms = KEEP_MS if keep_for is None else duration_us(keep_for) // US_PER_MS
    return Retention(keep_snapshots, keep_ms, grace_ms)


def _follow(settings: Settings, shipper: Any, *, as_backup: bool) -> None:
    from viewstamp.archive.shipping_loop import ship_rounds

    ended = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: ended.set())

    def has_ended(pause_ms: int) -> bool:
        return ended.wait(pause_ms / MS_PER_S)

    last = ""

    def tell(told: RoundTold) -> None:
        nonlocal last
        line = _line(told)
        if not printed_lines(settings, [told.to_json()]) and line != last:
            typer.echo(line)
        last = line

    ship_rounds(shipper, lambda: None, tell, has_ended, as_backup=as_backup)


def _line(told: RoundTold) -> str:
    report = told.report
    if told.message:
        return f"not shipped: {told.reason}: {told.message}"
    place = f"manifest {report.manifest}, revision {report.archived_revision}"
    state = "" if report.is_shipping else "; another replica is the primary"
    return f"{place}, snapshot {report.snapshot}, {report.lag_ops} entries behind{state}"


def shower(progress: Any) -> Told:
    """Return what shows steps in a progress display."""
    tasks: dict[str, Any] = {}

    def show(step: str, done: int, total: int) -> None:
        if step not in tasks:
            tasks[step] = progress.add_task(_STEPS[step], total=total)
        progress.update(tasks[step], completed=done, total=total)

    return show


def _listed(manifest: ArchiveManifest) -> dict[str, Any]:
    parts = manifest.parts
    return {
        "cluster_id": manifest.cluster_id.hex(),
        "manifest": manifest.number,
        "written_at": moment(manifest.written_us),
        "replica": manifest.replica,
        "first_op": parts[0].first_op if parts else 0,
        "last_op": manifest.last_op,
        "last_revision": parts[-1].last_revision if parts else 0,
        "last_time": moment(parts[-1].last_time) if parts else None,
        "gaps": [{"first_op": first, "last_op": last} for first, last in manifest.gaps],
        "snapshots": [
            {
                "generation": each.generation,
                "cut_revision": each.cut_revision,
                "cut_at": moment(each.timestamp),
                "size_bytes": each.total_bytes,
            }
            for each in manifest.snapshots
        ],
    }


def _show_listed(manifest: ArchiveManifest) -> None:
    listed = _listed(manifest)
    rows = [
        {"what": name.replace("_", " "), "value": value}
        for name, value in listed.items()
        if name not in ("gaps", "snapshots")
    ]
    print_table(("what", "value"), rows, "archive")
    columns = ("generation", "cut_revision", "cut_at", "size_bytes")
    print_table(columns, listed["snapshots"], "snapshots")
    _show_gaps(manifest)


def _show_gaps(manifest: ArchiveManifest) -> None:
    for first, last in manifest.gaps:
        typer.echo(f"gap: entries {first} to {last} were lost before they were shipped")


def _verdict(verdict: ArchiveVerdict) -> dict[str, Any]:
    return {
        "cluster_id": verdict.manifest.cluster_id.hex(),
        "manifest": verdict.manifest.number,
        "is_whole": verdict.is_whole,
        "pieces": verdict.pieces,
        "stored_bytes": verdict.stored_bytes,
        "gaps": _listed(verdict.manifest)["gaps"],
        "problems": [asdict(each) for each in verdict.problems],
        "problems_untold": verdict.problems_untold,
        "restorable": [
            {
                "first_revision": each.first_revision,
                "last_revision": each.last_revision,
                "first_time": moment(each.first_time),
                "last_time": moment(each.last_time),
            }
            for each in verdict.restorable
        ],
    }


def _show_verdict(verdict: ArchiveVerdict) -> None:
    found = _verdict(verdict)
    for problem in verdict.problems:
        typer.echo(f"{problem.reason}: {problem.message}")
    if verdict.problems_untold:
        typer.echo(f"{verdict.problems_untold} more objects are missing or damaged")
    _show_gaps(verdict.manifest)
    columns = ("first_revision", "last_revision", "first_time", "last_time")
    print_table(columns, found["restorable"], "can be restored")
    judged = "whole" if verdict.is_whole else "not whole"
    typer.echo(
        f"archive {judged}: manifest {verdict.manifest.number}, {verdict.pieces} pieces,"
        f" {len(verdict.manifest.snapshots)} snapshots, {verdict.stored_bytes} bytes read"
    )
