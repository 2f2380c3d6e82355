"""Errors that any package of the coordinator may raise."""

from __future__ import annotations


class ConfigError(Exception):
    """A flag, or a combination of flags, that cannot work; the message says what would."""


class HaltedError(Exception):
    """The replica cannot go on without an operator; the message says what to do."""
