"""Expressions over entities: what they mean, and what is wrong with the wrong ones."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import pytest
from google.protobuf.message import Message

from tests.viewstamp.snapshots.generations import (
    PASSWORD_HASH,
    TOKEN_HASH,
    SnapshotDirectory,
)
from viewstamp.api.consumer_groups.v1 import consumer_groups_pb2
from viewstamp.api.streams.v1 import streams_pb2
from viewstamp.api.users.v1 import users_pb2
from viewstamp.snapshots.copies import Copies, copy_directories
from viewstamp.snapshots.errors import BadExpression
from viewstamp.snapshots.explore.expressions import read_choice, read_condition
from viewstamp.snapshots.explore.open_generation import OpenGeneration

PLACE = "^"


def state() -> Iterable[Message]:
    """Two users, a token, a stream with two topics, a group."""
    permissions = users_pb2.Permissions()
    permissions.streams.add(read_stream=True).stream.id = 1
    ranges = [streams_pb2.PartitionRange(count=3), streams_pb2.PartitionRange(first=10, count=2)]
    return [
        users_pb2.UserEntity(id=0, username="root", password_hash=PASSWORD_HASH),
        users_pb2.UserEntity(
            id=5,
            username='ann "the fox"',
            status=users_pb2.USER_STATUS_ACTIVE,
            permissions=permissions,
            password_hash=PASSWORD_HASH,
        ),
        users_pb2.PersonalAccessTokenEntity(user_id=5, name="ci", token_hash=TOKEN_HASH),
        streams_pb2.StreamEntity(id=1, name="shop"),
        streams_pb2.TopicEntity(id=7, stream_id=1, name="orders", partitions=ranges),
        streams_pb2.TopicEntity(
            id=8, stream_id=1, name="bills", options=streams_pb2.TopicOptions(replication_factor=3)
        ),
        streams_pb2.AccessEntity(user_id=5, permissions=b"\x00\xff", active=True),
        consumer_groups_pb2.ConsumerGroupEntity(
            id=1, stream_id=1, topic_id=7, name="billing", group_epoch=4, assignment_epoch=3
        ),
    ]


@pytest.fixture
def generation(tmp_path: Path) -> Iterable[OpenGeneration]:
    """A generation with that state."""
    replica = SnapshotDirectory(tmp_path)
    replica.snapshot(state())
    with OpenGeneration(Copies(copy_directories(tmp_path)), 0) as opened:
        yield opened


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ('exists(topic where name == "orders")', True),
        ("exists(topics where name == 'orders')", True),
        ('exists(topic where name == "order")', False),
        ('exists(topic where name != "orders" and name != "bills")', False),
        ('exists(topic where name ~ "o*s")', True),
        ('exists(topic where name ~ "o?s")', False),
        (r'exists(user where username == "ann \"the fox\"")', True),
        ('exists(user where status == "active" and id == 5)', True),
        ('exists(user where status == "active" and id == 0)', False),
        ('exists(user where id == 9 or id == 8 or username == "root")', True),
        ("exists(user where not (id == 0 or id == 5))", False),
        ("exists(user where not id == 0 and not id == 5)", False),
        # `and` binds closer than `or`.
        ("exists(user where id == 0 or id == 5 and id == 9)", True),
        ("exists(user where (id == 0 or id == 5) and id == 9)", False),
        ("exists(broker)", False),
        ("exists(token)", True),
        ("not exists(broker) and exists(token)", True),
        ("not not exists(broker)", False),
        ("count(topic) == 2", True),
        ("count(topic) != 2", False),
        ("count(topic) < 2", False),
        ("count(topic) <= 2", True),
        ("count(topic) > 2", False),
        ("count(topic) >= 2", True),
        ("count(topic) > -1", True),
        ("count(topic where id >= 7) == 2", True),
        ("count(topic where id > 7) == 1", True),
        ("count(topic where 7 < id) == 1", True),
        ("count(partition) == 5", True),
        ("count(partition) > 4", True),
        ("count(partition) > 5", False),
        ("count(partition where id >= 10) == 2", True),
        ('count(partition where topic == "bills") == 0', True),
        ("count(topic where len(partitions) == 2) == 1", True),
        ("count(topic where partitions.count == 2) == 1", True),
        ("exists(topic where partitions.first > 10)", False),
        # Of null no comparison but that with null holds.
        ("count(topic where options == null) == 1", True),
        ("count(topic where options != null) == 1", True),
        ("count(topic where options.replication_factor == null) == 1", True),
        ("count(topic where options.replication_factor >= 0) == 1", True),
        ("count(topic where not options.replication_factor >= 0) == 1", True),
        ("exists(user where permissions.streams.read_stream)", True),
        ("exists(user where permissions.streams.stream.id == 1)", True),
        ("exists(user where permissions.streams.stream.id == 2)", False),
        ("exists(access where active)", True),
        ("exists(access where active == false)", False),
        ('exists(access where permissions == "00ff")', True),
        ("exists(group where group_epoch > assignment_epoch)", True),
        ("exists(group where group_epoch == assignment_epoch)", False),
        ('exists(topic where "orders" == name)', True),
    ],
)
def test_meaning(generation: OpenGeneration, text: str, expected: bool) -> None:
    """Each sign, word and field of the language means what the page says."""
    assert read_condition(text)(generation, lambda _: None) is expected


@pytest.mark.parametrize(
    ("text", "message", "hint"),
    [
        ("^", "begins with exists", "such as exists"),
        ("^exist(topic)", "begins with exists", "such as exists"),
        ("exists^", "( is missing", ""),
        ("exists(topic^", ") is missing", ""),
        ("exists(^topc)", "the kind of an entity", "write topic"),
        ("exists(^)", "the kind of an entity", "choose from"),
        ("exists(topic ^name)", ") is missing", "where"),
        ("exists(topic where ^)", "a field or a value", "fields: id, stream_id, name"),
        ('exists(topic where ^nam == "x")', "no field 'nam'", "write name"),
        ("exists(topic where partitions.^coun > 4)", "no field 'coun'", "write count"),
        ("exists(topic where id.^x > 4)", "no field 'x'", "it is a value"),
        # Secrets have no name here.
        ('exists(user where ^password_hash == "x")', "no field", "username"),
        ('exists(token where ^token_hash == "x")', "no field", "user_id"),
        ("exists(topic where name == ^7)", "a text is compared with a number", "a text"),
        ("exists(topic where id == ^name)", "a number is compared with a text", "a number"),
        ('exists(user where status == ^"actve")', "never has this value", "active"),
        ("exists(topic where options ^== 4)", "a group of fields", "name a field"),
        ("exists(topic where ^options)", "no condition by itself", "compare it"),
        ("exists(topic where ^id)", "no condition by itself", "compare it"),
        ("exists(topic where id ^~ 4)", "~ compares texts", "=="),
        ("exists(access where active ^< true)", "have an order", "=="),
        ("exists(topic where id ^= 4)", "no sign =", "=="),
        ("exists(topic where id == 4 ^&& id == 5)", "no sign &", "and"),
        ("^!exists(topic)", "no sign !", "not"),
        ('exists(topic where name == ^"abc)', "not closed", '"'),
        ("exists(topic where id == 4^#)", "means nothing here", "--help"),
        ("count(topic)^", "is compared by", "one of these"),
        ("count(topic) ^~ 4", "is compared by", "one of these"),
        ('count(topic) > ^"4"', "compared with a number", "count(topic) > 10"),
        ("exists(topic) ^exists(topic)", "should end here", "and"),
        ("exists(topic) and ^", "begins with exists", ""),
        ("not ( exists(topic)^", ") is missing", ""),
        ("(" * 50 + "^(", "50 levels", "flatter"),
        ("not " * 50 + "^not exists(topic)", "50 levels", "flatter"),
    ],
)
def test_errors(text: str, message: str, hint: str) -> None:
    """An error names the place at which the expression is wrong, and what would be right."""
    position = text.index(PLACE)
    with pytest.raises(BadExpression) as caught:
        read_condition(text.replace(PLACE, ""))
    assert message in caught.value.message
    assert hint in caught.value.next_step
    assert caught.value.position == position
    assert f"at character {position + 1} " in caught.value.message


def test_the_longest_expression() -> None:
    """An expression of 1,000 characters is read, and one of 1,001 is refused."""
    text = "exists(topic)"
    read_condition(text + " " * (1_000 - len(text)))
    with pytest.raises(BadExpression, match="it has 1001 characters, 1000 are allowed"):
        read_condition(text + " " * (1_001 - len(text)))


def test_reading_ends_at_the_entity_that_decides(generation: OpenGeneration) -> None:
    """A condition reads no entity after the one that decides it."""
    read: list[int] = []
    choice = read_choice("topic where id > 0")
    assert choice.count(generation, read.append, 1) == 1
    rows = choice.rows(generation, read.append)
    assert next(rows)["id"] == 7


def test_the_manifest_alone_counts_kinds(generation: OpenGeneration) -> None:
    """A count of a whole kind needs no layer, not even one that is there."""
    for path in generation.copies.directories:
        for layer in (path / "layers").iterdir():
            layer.unlink()
    assert read_condition("count(topic) == 2")(generation, lambda _: None)
