"""What a row of `viewstamp blame` says of a change."""

from __future__ import annotations

from typing import Any

import pytest

from viewstamp.cli.blame_words import row_of


def change(entity_type: str, **values: Any) -> dict[str, Any]:
    """Return a change as the command line has it."""
    return {
        "revision": 7,
        "time": None,
        "method": "some.Service/SomeCommand",
        "is_internal": False,
        "username": "root",
        "user_id": 0,
        "session_id": 0,
        "kind": "updated",
        "entity_type": f"viewstamp.api.some.v1.{entity_type}",
        "before": None,
        "after": None,
        "changed": {},
        "has_more": False,
    } | values


def placed(*partitions: tuple[int, list[int], list[int]], revision: int = 1) -> dict[str, Any]:
    """Return placements: partition, replicas and those in sync."""
    return {
        "placements": [
            {"partition": number, "replicas": replicas, "in_sync": in_sync, "revision": revision}
            for number, replicas, in_sync in partitions
        ]
    }


MANY = [(number, [1], [1]) for number in range(5)]


@pytest.mark.parametrize(
    ("told", "partition", "what"),
    [
        (change("Topic"), None, "updated"),
        (change("Topic", changed={"name": {"before": "", "after": "b"}}), None, "name: - -> b"),
        (
            change("PersonalAccessToken", kind="created", after={"name": "deploy"}),
            None,
            "token deploy: created",
        ),
        (
            change("Member", kind="deleted", before={"session_id": 9}),
            None,
            "member with session 9: deleted",
        ),
        (
            change("Member", kind="deleted", before={"session_id": 9}, has_more=True),
            None,
            "member with session 9: deleted; and more",
        ),
        # Its member was too large to be told.
        (change("Member", kind="deleted"), None, "deleted"),
        (
            change(
                "Placements",
                before=placed((3, [1], [1]), (4, [2], [2])),
                after=placed((3, [1, 2], [1]), (4, [2], [2])),
            ),
            None,
            "partition 3: replicas [1] -> [1, 2]",
        ),
        (
            change("Placements", kind="created", after=placed((0, [1], [1]))),
            None,
            "partition 0: replicas - -> [1], in_sync - -> [1]",
        ),
        (
            change(
                "Placements",
                before=placed((0, [1], [1])),
                after=placed((0, [1], [1]), revision=2),
            ),
            None,
            "partition 0: in sync again",
        ),
        (
            change("Placements", kind="deleted", before=placed(*MANY)),
            3,
            "partition 3: replicas [1] -> -, in_sync [1] -> -",
        ),
    ],
)
def test_a_change_in_words(told: dict[str, Any], partition: int | None, what: str) -> None:
    """A row says which part changed, and what of it; of placements partition by partition."""
    assert row_of(told, partition)["what"] == what


def test_many_partitions_are_counted() -> None:
    """A command that changed very many partitions names some, and how many others there are."""
    what = row_of(change("Placements", kind="deleted", before=placed(*MANY)))["what"]
    assert what.startswith("partition 0: ")
    assert what.endswith("; 2 other partitions")
    assert what.count("partition ") == 3
