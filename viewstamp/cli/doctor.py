"""`viewstamp doctor`: what is wrong with a cluster, and a bundle to send to somebody."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from viewstamp.cli import archive_options
from viewstamp.cli.output import printed
from viewstamp.cli.settings import EXIT_CHANGES, Settings, fail, settings_of
from viewstamp.complaints import DocumentError
from viewstamp.configuration.config_file import read_config_file
from viewstamp.configuration.program import SECTIONS
from viewstamp.names import CONTROL_CHARACTERS

if TYPE_CHECKING:
    from viewstamp.doctor.checks import Finding
    from viewstamp.doctor.evidence import DoctorEvidence
    from viewstamp.format.archive_manifest import ArchiveManifest

CLUSTER: Final = "cluster"


def doctor(
    context: typer.Context,
    data: Annotated[
        list[Path] | None,
        typer.Option(help="Data directory of a replica here, or of `viewstamp up`; repeatable."),
    ] = None,
    metrics: Annotated[
        list[str] | None,
        typer.Option(metavar="HOST:PORT", help="Metrics page of a process; repeatable."),
    ] = None,
    log: Annotated[
        list[Path] | None,
        typer.Option(help="Log file, beside those in data directories; repeatable."),
    ] = None,
    config: Annotated[
        list[Path] | None, typer.Option(help="Configuration file to check; repeatable.")
    ] = None,
    archive: Annotated[
        list[str] | None,
        typer.Option(help="Archive: s3://BUCKET/PREFIX, or its directory; repeatable."),
    ] = None,
    archive_key_file: archive_options.KeyFiles = None,
    offline: Annotated[
        bool, typer.Option("--offline", help="Do not ask the cluster at --address.")
    ] = False,
    bundle: Annotated[
        Path | None,
        typer.Option(help="Write what was found there: a new directory, or a new .tar.gz file."),
    ] = None,
) -> None:
    """Say what is wrong with a cluster, and what to do about each of it.

    Asks every replica for its own state, and looks at what the options name. The bundle holds
    status, flags, settings, metrics, room on disks, snapshots and the ends of logs. Keys, passwords
    and tokens are taken out; names of streams, topics and users are not. Exit codes: 0 nothing to
    do, hints aside; 5 there is something to do.
    """
    from viewstamp.doctor import gathering
    from viewstamp.doctor.checks import findings

    settings = settings_of(context)
    evidence = gathering.begin(os.environ.items())
    for directory in data or ():
        for each in gathering.replica_directories(directory):
            look = partial(gathering.look_at_directory, evidence, each)
            gathering.tried(evidence, str(each), look)
    for path in log or ():
        gathering.tried(evidence, str(path), partial(gathering.look_at_log, evidence, path))
    for page in metrics or ():
        gathering.tried(evidence, page, partial(gathering.look_at_page, evidence, page))
    for path in config or ():
        gathering.tried(evidence, str(path), partial(_look_at_config, evidence, path))
    for place in archive or ():
        newest = partial(_newest, place, archive_key_file)
        look = partial(gathering.look_at_archive, evidence, place, newest)
        gathering.tried(evidence, place, look)
    if not offline:
        gathering.tried(evidence, CLUSTER, partial(_ask_cluster, evidence, settings))
    found = findings(evidence)
    if bundle is not None:
        _write(settings, evidence, found, bundle)
    _tell(settings, evidence, found, bundle)


def _look_at_config(evidence: DoctorEvidence, path: Path) -> None:
    """Check a configuration file. Raises OSError."""
    from viewstamp.cli.config_commands import checked_file

    try:
        report = checked_file(read_config_file(path, SECTIONS))
    except DocumentError as error:
        report = {"settings": [], "problems": [str(each) for each in error.complaints]}
    evidence.configurations[str(path)] = report


def _newest(place: str, keys: list[Path] | None) -> ArchiveManifest:
    """Return the newest manifest of an archive. Raises ArchiveError, OSError."""
    return archive_options.opened_chain(place, keys).wanted().manifest


def _ask_cluster(evidence: DoctorEvidence, settings: Settings) -> None:
    """Ask the replicas. Raises ValueError without a login."""
    from viewstamp.cli.cluster_answers import ClusterAnswers
    from viewstamp.cli.session import kept_credentials
    from viewstamp.client.transport import AccessTokenSource, Credentials

    try:
        kept = kept_credentials(settings)
    except typer.Exit as error:
        raise ValueError("the login cannot be used; its error is told on stderr") from error
    if kept is None:
        raise ValueError(
            f"no login is stored for {settings.address}: run `viewstamp login`, or give --offline"
        )
    settings, identity = kept
    evidence.secrets |= set(identity.values())

    async def asked() -> None:
        source = AccessTokenSource(Credentials(**identity))
        answers = ClusterAnswers(evidence, source, settings.tls_ca, settings.connect_timeout_s)
        await answers.gather(settings.addresses)

    asyncio.run(asked())


def _write(
    settings: Settings, evidence: DoctorEvidence, found: Sequence[Finding], bundle: Path
) -> None:
    from viewstamp.doctor.bundle import bundle_files, write_bundle

    try:
        write_bundle(bundle, bundle_files(evidence, found))
    except OSError as error:
        step = "give a path that does not exist yet, in a directory that you may write to"
        fail(settings, "CANNOT_WRITE", f"{bundle}: {error.strerror}", step)


def _tell(
    settings: Settings, evidence: DoctorEvidence, found: Sequence[Finding], bundle: Path | None
) -> None:
    """Print findings without secrets; exit with 5 if one of them is more than a hint."""
    from viewstamp.doctor.checks import Severity
    from viewstamp.doctor.redaction import redacted_values, redactor

    redact = redactor(evidence.secrets)
    rows = [redacted_values(finding.as_json(), redact) for finding in found]
    kept = None if bundle is None else str(bundle)
    if not printed(settings, {"findings": rows, "bundle": kept}):
        for row in rows:
            line = f"{row['severity']}: {row['place']}: {row['text']} [{row['check']}]"
            # A terminal acts on control characters, which a log or a page may have.
            typer.echo(CONTROL_CHARACTERS.sub("?", line))
            typer.echo(f"    Next: {row['next_step']}.")
        if not rows:
            typer.echo("nothing is wrong with what was looked at")
        if bundle is not None:
            typer.echo(f"wrote {bundle}: look through it before you send it to anybody")
    if any(finding.severity is not Severity.HINT for finding in found):
        raise typer.Exit(EXIT_CHANGES)
