"""Revisions that commands expect of tokens, offsets and placements: mostly the right ones."""

from __future__ import annotations

from typing import Any, Final

from testkit.composite.offset_fillers import Chooser, OffsetFiller


def fill_token_revision(chooser: Chooser, request: Any, context: dict[str, Any]) -> None:
    """Expect a revision of the token that is named, if there is one."""
    users = chooser.model.world.users
    owner = context.get("user") or users.get(context["user_id"])
    token = owner.tokens.get(request.name) if owner is not None else None
    if token is not None and chooser.chance(2):
        request.expected_revision = token.created - chooser.chance(2)


def fill_offsets_revision(chooser: Chooser, request: Any, context: dict[str, Any]) -> None:
    """Expect a revision of the group's offsets."""
    group = context["group"]
    if group is not None and chooser.chance(3):
        request.expected_revision = max(0, group.offsets_revision - chooser.chance(3))


def fill_placements_revision(chooser: Chooser, request: Any, context: dict[str, Any]) -> None:
    """Expect a revision of the placements that are named."""
    topic = context["topic"]
    if topic is None or not chooser.chance(3):
        return
    named = [topic.placements.get(each.partition) for each in request.assignments]
    newest = max((placement.revision for placement in named if placement), default=0)
    request.expected_revision = max(0, newest - chooser.chance(3))


GUARD_FILLERS: Final[dict[tuple[str, str], OffsetFiller]] = {
    ("DeletePersonalAccessToken", "expected_revision"): fill_token_revision,
    ("DeleteUserToken", "expected_revision"): fill_token_revision,
    ("CommitOffsets", "expected_revision"): fill_offsets_revision,
    ("ResetOffsets", "expected_revision"): fill_offsets_revision,
    ("DeleteOffsets", "expected_revision"): fill_offsets_revision,
    ("PlacePartitions", "expected_revision"): fill_placements_revision,
}
