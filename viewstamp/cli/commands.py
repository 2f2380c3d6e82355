"""The modules of the commands. A command is loaded when it is called.

To load all of them takes longer than most commands take, and a shell that completes a name would
wait for it at every TAB.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from typing import Any, Final

import typer
from typer.core import TyperCommand

GROUP: Final = "app"


@dataclass(frozen=True, slots=True)
class CommandPlace:
    """The place of a command: a module of this package, and a function or `app` in it.

    `help` is the first sentence of the command's help.
    """

    module: str
    attribute: str
    help: str


# Help lists the commands in this order.
PLACES: Final = {
    "up": CommandPlace("up", "up", "Run a cluster on this machine until Ctrl-C."),
    "keygen": CommandPlace(
        "up",
        "keygen",
        "Write a new cluster key: 64 hexadecimal digits, the same file for every replica.",
    ),
    "config": CommandPlace(
        "config_commands", GROUP, "Check a configuration file, and print its schema."
    ),
    "login": CommandPlace("access", "login", "Log in and keep the access token for this cluster."),
    "logout": CommandPlace(
        "access", "logout", "End the access token kept for this cluster, and forget it."
    ),
    "context": CommandPlace(
        "context_commands",
        GROUP,
        "Manage contexts: named addresses of clusters, and how to reach them.",
    ),
    "status": CommandPlace("cluster", "status", "Show replicas, services and alarms."),
    "top": CommandPlace(
        "top",
        "top",
        "Show replicas, rates, snapshots, alarms and the lag of groups, refreshed until Ctrl-C.",
    ),
    "doctor": CommandPlace(
        "doctor", "doctor", "Say what is wrong with a cluster, and what to do about each of it."
    ),
    "audit": CommandPlace(
        "audit",
        "audit",
        "Show the audit log of a replica: changes, logins and denials, oldest first.",
    ),
    "log": CommandPlace(
        "log_command",
        "log",
        "Show the entries in the journal of a replica, as its disk holds them, without secrets.",
    ),
    "restore": CommandPlace(
        "restore_command",
        "restore",
        "Found a new cluster from an archive, a snapshot, or one replica of a lost cluster.",
    ),
    "archive": CommandPlace(
        "archive_command",
        GROUP,
        "Ship the log and the snapshots of a replica to an archive, and look into one.",
    ),
    "analyze": CommandPlace(
        "analyze",
        "analyze",
        "Turn traces and snapshots into tables and one page to read, with Spark.",
    ),
    "user": CommandPlace("users", GROUP, "Manage users and their permissions."),
    "token": CommandPlace("tokens", GROUP, "Manage your personal access tokens."),
    "session": CommandPlace("client_sessions", GROUP, "List and end client sessions."),
    "stream": CommandPlace("streams", GROUP, "Manage streams, which hold topics."),
    "topic": CommandPlace("topics", GROUP, "Manage topics of streams."),
    "group": CommandPlace("groups", GROUP, "Manage consumer groups of topics."),
    "broker": CommandPlace("brokers", GROUP, "Manage brokers, which carry the data of partitions."),
    "watch": CommandPlace("watch", "watch", "Show changes as they are committed, until Ctrl-C."),
    "blame": CommandPlace(
        "blame", GROUP, "Show who changed an entity: when, by which command, and what."
    ),
    "snapshot": CommandPlace(
        "snapshots",
        GROUP,
        "Manage snapshots: all state at one revision, on a cluster or on disk.",
    ),
    "cluster": CommandPlace("cluster", GROUP, "Inspect and manage the replicas of a cluster."),
    "replica": CommandPlace(
        "membership_commands",
        GROUP,
        "List, add, promote and remove the replicas of a running cluster.",
    ),
    "plan": CommandPlace("topology", "plan", "Show what `apply` would change, and change nothing."),
    "apply": CommandPlace(
        "topology",
        "apply",
        "Make the cluster as a document declares. What it does not list is left alone.",
    ),
    "diff": CommandPlace(
        "topology",
        "diff",
        "Show how the cluster and a document differ, as a unified difference of YAML.",
    ),
    "export": CommandPlace(
        "topology", "export", "Print the cluster as a document, YAML, without secrets."
    ),
    "import": CommandPlace("imports", GROUP, "Import catalogues of other platforms."),
}


def placeholders() -> dict[str, Any]:
    """Return a command for each name; it has a help text, but cannot be called."""
    return {name: TyperCommand(name, help=place.help) for name, place in PLACES.items()}


def with_loaded(name: str) -> dict[str, Any]:
    """Return the command of a name under its name; nothing if there is none."""
    place = PLACES.get(name)
    if place is None:
        return {}
    found = getattr(import_module(f"viewstamp.cli.{place.module}"), place.attribute)
    return {name: _command(name, found)}


def _command(name: str, found: typer.Typer | Callable[..., Any]) -> Any:
    holder = typer.Typer(add_completion=False, rich_markup_mode="markdown")
    # The callback makes it a group, even if it holds only one command.
    holder.callback()(lambda: None)
    if isinstance(found, typer.Typer):
        holder.add_typer(found, name=name)
    else:
        holder.command(name)(found)
    group: Any = typer.main.get_command(holder)
    return group.commands[name]
