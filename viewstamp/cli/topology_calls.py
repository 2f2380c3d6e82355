"""What the commands about topologies share: reading documents, showing plans, carrying them out."""

from __future__ import annotations

import sys
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NoReturn, TypeVar

import typer

from viewstamp import topology
from viewstamp.cli.calls import run
from viewstamp.cli.options import confirm
from viewstamp.cli.output import printed
from viewstamp.cli.settings import (
    EXIT_REFUSED,
    EXIT_UNANSWERED,
    EXIT_USAGE,
    Settings,
    fail,
    settings_of,
    told,
)
from viewstamp.topology.display import StyledLine, change_values, plan_lines, plan_values

if TYPE_CHECKING:
    from viewstamp.client import Client
    from viewstamp.topology.sending import Progress

T = TypeVar("T")
STANDARD_INPUT: Final = "-"
NOTHING_APPLIED: Final = topology.AppliedPlan()
# Class of error -> reason, what to do, and exit code.
_FAILURES: Final[dict[type[Exception], tuple[str, str, int]]] = {
    topology.PlanRefused: ("PLAN_REFUSED", "correct the document", EXIT_REFUSED),
    topology.PlanChanged: ("PLAN_CHANGED", "repeat the command", EXIT_REFUSED),
    topology.NotAtomic: ("NOT_ATOMIC", "leave out --atomic, or apply less", EXIT_REFUSED),
    topology.ClusterUnsettled: ("UNSETTLED", "repeat the command", EXIT_UNANSWERED),
    topology.PasswordFileError: (
        "BAD_PASSWORD_FILE",
        "choose another file with --password-file",
        EXIT_USAGE,
    ),
}


@dataclass(frozen=True, slots=True)
class ApplyOptions:
    """How a topology is applied."""

    rules: topology.PlanRules
    password_file: Path
    yes: bool = False
    dry_run: bool = False
    atomic: bool = False


def read(settings: Settings, files: Sequence[str], *, prune: bool = False) -> topology.Topology:
    """Return what files declare together; report what is wrong with them, and exit."""
    try:
        wanted = topology.merged([each for file in files for each in _documents(file)])
    except OSError as error:
        fail(settings, "CANNOT_READ", told(error), "give a document with -f, or - for the input")
    except topology.DocumentError as error:
        _fail_documents(settings, error)
    if prune and not wanted.may_prune:
        fail(
            settings,
            "NOTHING_TO_PRUNE",
            "no document says what it may prune",
            "add `prune: true` to a stream or a topic, or `prune:` with patterns of names",
        )
    return wanted


def made(context: typer.Context, action: Callable[[Client], Awaitable[T]]) -> T:
    """Run an action of this package with a client; report its errors, and exit."""
    settings = settings_of(context)
    try:
        return run(context, action)
    except tuple(_FAILURES) as error:
        reason, step, exit_code = _FAILURES[type(error)]
        fail(settings, reason, str(error), step, exit_code=exit_code)


def show_plan(settings: Settings, plan: topology.Plan) -> None:
    """Print a plan, as a document or in lines."""
    if not printed(settings, plan_values(plan)):
        for line in plan_lines(plan):
            typer.secho(line.text, fg=line.colour)


def apply_topology(
    context: typer.Context, wanted: topology.Topology, options: ApplyOptions
) -> None:
    """Show the plan, ask before anything is lost, and carry it out; or only check it."""
    settings = settings_of(context)
    plan, checked = made(context, lambda client: _planned(client, wanted, options))
    if options.dry_run:
        _show_dry_run(settings, plan, checked)
        return
    if not settings.for_programs:
        show_plan(settings, plan)
    if plan.problems:
        _fail_plan(settings, plan)
    if plan.losses:
        question = f"This plan loses what {len(plan.losses)} of its changes name. Apply it?"
        confirm(settings, question, yes=options.yes, dry_run=False)
    applied = _carried_out(context, wanted, options, plan) if plan.changes else NOTHING_APPLIED
    _show_applied(settings, applied, options)


def _carried_out(
    context: typer.Context, wanted: topology.Topology, options: ApplyOptions, plan: topology.Plan
) -> topology.AppliedPlan:
    with _progress(settings_of(context), plan) as progress:
        return made(
            context,
            lambda client: topology.apply(
                client,
                wanted,
                options.rules,
                passwords=topology.PasswordFile(options.password_file),
                approved=plan,
                atomic=options.atomic,
                progress=progress,
            ),
        )


async def _planned(
    client: Client, wanted: topology.Topology, options: ApplyOptions
) -> tuple[topology.Plan, topology.PlanCheck]:
    plan = await topology.plan(client, wanted, options.rules)
    if plan.problems or not options.dry_run:
        return plan, topology.PlanCheck()
    return plan, await topology.check(client, plan, atomic=options.atomic)


def _show_dry_run(settings: Settings, plan: topology.Plan, checked: topology.PlanCheck) -> None:
    """Print the plan and what the cluster would refuse of it; exit with 1 if that is anything."""
    refused = [{"reason": each.name, "message": each.message} for each in checked.refusals]
    values = {
        "refusals": refused,
        "checked_as_one": bool(checked.commands) and not checked.split,
        "unchecked_commands": checked.unchecked,
        "dry_run": True,
    }
    if not printed(settings, {**plan_values(plan), **values}):
        show_plan(settings, plan)
        for each in checked.refusals:
            typer.secho(f"! the cluster would refuse: {each.name}: {each.message}", fg="red")
        for line in _how_checked(checked):
            typer.secho(line.text, fg=line.colour)
        typer.echo("dry run: nothing was changed")
    if plan.problems or checked.refusals:
        raise typer.Exit(EXIT_REFUSED)


def _how_checked(checked: topology.PlanCheck) -> Iterator[StyledLine]:
    """Yield lines that say what a check is worth."""
    if checked.split:
        yield StyledLine(f"not checked as one transaction: {checked.split}", "yellow")
        count, others = checked.commands, checked.unchecked
        yield StyledLine(
            f"the cluster checked {count - others} of {count} commands by themselves; what the"
            f" other {others} depend on is not there yet"
            if others
            else f"the cluster checked each of {count} commands by itself",
            "yellow",
        )
    elif checked.commands and not checked.refusals:
        yield StyledLine("the cluster would carry out all of it at one revision")


def _show_applied(settings: Settings, applied: topology.AppliedPlan, options: ApplyOptions) -> None:
    created = [
        change
        for change in applied.changes
        if change.kind is topology.DeclaredKind.USER and change.verb is topology.ChangeVerb.CREATE
    ]
    values = {
        "changes": [change_values(change) for change in applied.changes],
        "revisions": applied.revisions,
        "password_file": str(options.password_file) if created else None,
        "dry_run": False,
    }
    if printed(settings, values) or not applied.changes:
        return
    where = "revision" if len(applied.revisions) == 1 else "revisions"
    typer.echo(f"applied at {where} {', '.join(map(str, applied.revisions))}")
    if created:
        typer.echo(f"passwords of new users are in {options.password_file}: keep it safe")


def _fail_plan(settings: Settings, plan: topology.Plan) -> NoReturn:
    """Report that a plan cannot be applied; people have seen its problems already."""
    reason, step, exit_code = _FAILURES[topology.PlanRefused]
    count = len(plan.problems)
    text = f"the plan has {count} problem{'' if count == 1 else 's'}, marked with !"
    if settings.for_programs:
        text = "\n".join(plan.problems)
    fail(settings, reason, text, step, exit_code=exit_code)


def _documents(file: str) -> list[topology.Topology]:
    if file == STANDARD_INPUT:
        return topology.parsed(sys.stdin.read())
    return [topology.read_document(file)]


def _fail_documents(settings: Settings, error: topology.DocumentError) -> NoReturn:
    if settings.for_programs:
        fail(settings, "INVALID_DOCUMENT", str(error), "correct it; see docs/topology.md")
    typer.echo(str(error), err=True)
    count = len(error.complaints)
    text = f"there {'is 1 fault' if count == 1 else f'are {count} faults'} in what was given"
    fail(settings, "INVALID_DOCUMENT", text, "correct it; `viewstamp export --schema` helps")


@contextmanager
def _progress(settings: Settings, plan: topology.Plan) -> Iterator[Progress]:
    """Show a bar if there is more than one transaction and somebody looks."""
    if plan_values(plan)["transactions"] < 2 or settings.for_programs or not sys.stderr.isatty():
        yield lambda done, planned: None
        return
    # Imported late: few plans are so long.
    from rich.console import Console
    from rich.progress import Progress as Bars

    with Bars(console=Console(stderr=True)) as bars:
        task: Any = bars.add_task("commands", total=None)
        yield lambda done, planned: bars.update(task, completed=done, total=planned)
