"""Contexts: named values of the global options, in a file beside the logins.

A context says where a cluster is. The login at that cluster is kept by its address, so contexts
hold no secret.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Final

from viewstamp.cli.private_files import private_path, write_private

FILE_NAME: Final = "contexts.json"


@dataclass(frozen=True, slots=True)
class NamedContext:
    """Values of global options; None for those that the context leaves open."""

    address: str | None = None
    tls_ca: str | None = None
    timeout_s: float | None = None
    output: str | None = None


@dataclass(slots=True)
class KeptContexts:
    """The contexts of a user by name, and the name of the one in use."""

    named: dict[str, NamedContext] = field(default_factory=dict)
    in_use: str | None = None


class ContextError(ValueError):
    """No context has a name, or the file of contexts is damaged; the text says what to do."""


class ContextStore:
    """The contexts in $XDG_CONFIG_HOME/viewstamp/contexts.json."""

    def __init__(self) -> None:
        self.path = private_path(FILE_NAME)

    def load(self) -> KeptContexts:
        """Return what is kept. Raises ContextError for a damaged file."""
        try:
            text = self.path.read_text()
        except FileNotFoundError:
            return KeptContexts()
        try:
            return _kept(json.loads(text))
        except (ValueError, TypeError, AttributeError, KeyError) as error:
            step = "correct it, or delete it and set the contexts again"
            raise ContextError(f"{self.path} is damaged: {step}") from error

    def save(self, kept: KeptContexts) -> None:
        """Keep contexts instead of those before. Raises OSError."""
        named = {name: asdict(each) for name, each in sorted(kept.named.items())}
        write_private(self.path, {"in_use": kept.in_use, "contexts": named})


def chosen_context(name: str | None) -> NamedContext:
    """Return a context by name, else the one in use, else an empty one. Raises ContextError."""
    kept = ContextStore().load()
    wanted = name or kept.in_use
    return NamedContext() if wanted is None else found_context(kept, wanted)


def found_context(kept: KeptContexts, name: str) -> NamedContext:
    """Return a context by name. Raises ContextError."""
    if name not in kept.named:
        known = ", ".join(kept.named) or "none"
        raise ContextError(f"there is no context {name!r}; there are: {known}")
    return kept.named[name]


def _kept(document: Mapping[str, Any]) -> KeptContexts:
    named = {name: _context(values) for name, values in document["contexts"].items()}
    return KeptContexts(named, document["in_use"])


def _context(values: Mapping[str, Any]) -> NamedContext:
    """Return a context. Raises TypeError for a value of another type."""
    context = NamedContext(**values)
    texts = (context.address, context.tls_ca, context.output)
    if not all(each is None or isinstance(each, str) for each in texts):
        raise TypeError("an address, an authority and a format are texts")
    if not isinstance(context.timeout_s, float | int | None):
        raise TypeError("a timeout is a number")
    return context
