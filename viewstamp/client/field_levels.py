"""Fields that older builds do not know: they would carry out what was to be tried or guarded."""

from __future__ import annotations

from google.protobuf.message import Message

from viewstamp.api.errors.v1.errors_pb2 import Reason
from viewstamp.errors import Refusal
from viewstamp.routing import Method, sets_field


def check_fields(method: Method, request: Message, told_level: int) -> None:
    """Raise Refusal FEATURE_LEVEL_REQUIRED for a field that the cluster's build does not know.

    A build that tells a level when a stream opens, which is not 0, refuses such a field itself
    while the level in force is too low.
    """
    if told_level:
        return
    for name, level in method.field_levels.items():
        if sets_field(request, name):
            raise Refusal(
                Reason.REASON_FEATURE_LEVEL_REQUIRED,
                f"`{name}` of {method.name} needs feature level {level}, and the cluster runs a"
                " build that does not know it: upgrade the cluster first",
                method=method.name,
                field=name,
                required=level,
            )


def has_levels(method: Method, request: Message) -> bool:
    """Return whether a request sets a field that older builds do not know."""
    return any(sets_field(request, name) for name in method.field_levels)


def check_in_force(method: Method, request: Message, in_force: int) -> None:
    """Raise Refusal FEATURE_LEVEL_REQUIRED for a field above the level in force.

    This is for callers who cannot know which build will carry the command out.
    """
    for name, level in method.field_levels.items():
        if level > in_force and sets_field(request, name):
            raise Refusal(
                Reason.REASON_FEATURE_LEVEL_REQUIRED,
                f"`{name}` of {method.name} needs feature level {level}, and {in_force} is in"
                " force: a build that does not know it may get the command",
                method=method.name,
                field=name,
                required=level,
            )
