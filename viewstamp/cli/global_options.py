"""The values of the global options: from the command line, the environment, a context, or none.

The first of these that has a value decides. A context that `--context` names stands before the
environment, because it was named for this command.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

import typer

from viewstamp.authorities import authority_problem
from viewstamp.cli.contexts import ContextError, NamedContext, chosen_context
from viewstamp.cli.documents import OutputFormat
from viewstamp.cli.settings import DEFAULT_ADDRESS, PORT_MAX, Settings

TIMEOUT_S: Final = 30.0
TIMEOUT_MIN_S: Final = 0.1
# The commands that change contexts work whatever context is chosen.
CONTEXT_COMMANDS: Final = "context"
# Parameters of the root command are texts until its function is called.
_TYPES: Final[Mapping[str, Callable[[str], Any]]] = MappingProxyType(
    {"output": OutputFormat, "tls_ca": Path}
)


def given_options(root: Any) -> dict[str, Any]:
    """Return the global options on the command line by parameter."""
    return _values_from(root, "COMMANDLINE")


def read_settings(root: Any) -> Settings:
    """Return the settings of a root command. Raises BadParameter for values that cannot be."""
    options, variables = given_options(root), _values_from(root, "ENVIRONMENT")
    is_about_contexts = root.invoked_subcommand == CONTEXT_COMMANDS
    named = NamedContext() if is_about_contexts else _context({**variables, **options})
    return settings_from(options, variables, named)


def settings_from(
    options: Mapping[str, Any], variables: Mapping[str, Any], named: NamedContext
) -> Settings:
    """Return the settings of options, variables of the environment and a context.

    Raises BadParameter for a format that contradicts --json, or a bad value of the context.
    """
    kept = _values(named)
    orders = (options, kept, variables) if "context_name" in options else (options, variables, kept)

    def decided(name: str, default: Any) -> Any:
        found = (each[name] for each in orders if each.get(name) is not None)
        return next(found, default)

    output = decided("output", OutputFormat.table)
    if options.get("as_json"):
        _check_output(options.get("output"))
        output = OutputFormat.json
    return Settings(
        address=decided("address", DEFAULT_ADDRESS),
        output=output,
        tls_ca=decided("tls_ca", None),
        timeout_s=decided("timeout", TIMEOUT_S),
    )


def checked_addresses(text: str | None) -> str | None:
    """Return the addresses as given. Each of them must have a host and a port."""
    if text is None:
        return None
    addresses = Settings(address=text).addresses
    for address in addresses or [text]:
        host, _, port = address.rpartition(":")
        if not host or not port.isdecimal() or not 0 < int(port) <= PORT_MAX:
            raise typer.BadParameter(
                f"`{address}` is no address: give HOST:PORT, for example {DEFAULT_ADDRESS}"
            )
    return text


def checked_authority(path: Path | None) -> Path | None:
    """Return the path of a certificate authority, once its file can be used."""
    if path is not None and (problem := authority_problem(path)):
        raise typer.BadParameter(
            f"{problem}: give the PEM file of the CA that signed the cluster's"
        )
    return path


def _context(parameters: Mapping[str, Any]) -> NamedContext:
    try:
        return chosen_context(parameters.get("context_name"))
    except ContextError as error:
        raise typer.BadParameter(str(error), param_hint="--context") from error


def _values(named: NamedContext) -> dict[str, Any]:
    """Return what a context holds by parameter. Raises BadParameter for what cannot be."""
    timeout_s = named.timeout_s
    if timeout_s is not None and timeout_s < TIMEOUT_MIN_S:
        raise typer.BadParameter(f"the context's timeout_s is {timeout_s}: {TIMEOUT_MIN_S} or more")
    formats = {each.value: each for each in OutputFormat}
    if named.output is not None and named.output not in formats:
        text = f"the context's output is {named.output!r}: give one of {', '.join(formats)}"
        raise typer.BadParameter(text)
    return {
        "address": checked_addresses(named.address),
        "tls_ca": checked_authority(None if named.tls_ca is None else Path(named.tls_ca)),
        "timeout": timeout_s,
        "output": None if named.output is None else formats[named.output],
    }


def _check_output(output: OutputFormat | None) -> None:
    if output is not None and output is not OutputFormat.json:
        raise typer.BadParameter(f"--json and --output {output.value} contradict: give one")


def _values_from(root: Any, source: str) -> dict[str, Any]:
    """Return the parameters of a root command whose values are from a source, typed."""
    found = {name: value for name, value in root.params.items() if _source(root, name) == source}
    return {name: _TYPES[name](value) if name in _TYPES else value for name, value in found.items()}


def _source(root: Any, name: str) -> str | None:
    source = root.get_parameter_source(name)
    return None if source is None else str(source.name)
