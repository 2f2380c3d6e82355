"""Errors that any package of the coordinator may raise."""

from __future__ import annotations


class ConfigError(Exception):
    """A flag, or a combination of flags, that cannot work; the message says what would."""


class HaltedError(Exception):
    """The replica can never go on by itself; the message says what the operator can do."""
