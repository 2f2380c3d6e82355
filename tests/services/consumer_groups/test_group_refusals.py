"""Every reason for which the domain refuses, and the reads."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.services.consumer_groups.harness import METHODS, GroupsHarness, refused, settled
from viewstamp.api.consumer_groups.v1 import consumer_groups_pb2 as views
from viewstamp.api.consumer_groups.v1 import consumer_groups_service_pb2 as api
from viewstamp.errors import Refusal

ON_A_GROUP = (
    "UpdateConsumerGroup",
    "DeleteConsumerGroup",
    "JoinConsumerGroup",
    "LeaveConsumerGroup",
    "HeartbeatConsumerGroup",
    "GetConsumerGroup",
    "SyncConsumerGroup",
    "CommitOffsets",
    "ResetOffsets",
    "DeleteOffsets",
    "FetchOffsets",
)
OF_A_SESSION = (
    "JoinConsumerGroup",
    "LeaveConsumerGroup",
    "HeartbeatConsumerGroup",
    "SyncConsumerGroup",
)


def call(
    harness: GroupsHarness, rpc: str, *, session: int = 11, topic: int = 9, **group: object
) -> str:
    """Send the RPC with this group identifier and return the reason of its refusal."""
    request = METHODS[rpc].request()
    request.group.SetInParent()  # type: ignore[attr-defined]
    for key, value in group.items():
        setattr(request.group, key, value)  # type: ignore[attr-defined]
    run = harness.query if rpc.startswith(("Get", "Sync", "Fetch")) else harness.command
    return refused(lambda: run(rpc, request, session=session, topic=topic))


@pytest.mark.parametrize("rpc", ON_A_GROUP)
def test_unknown_group(rpc: str) -> None:
    """A group is found by id or name, on its own topic alone; else it is not found."""
    harness = settled([11])
    assert call(harness, rpc, name="nobody") == "GROUP_NOT_FOUND"
    assert call(harness, rpc, id=2) == "GROUP_NOT_FOUND"
    assert call(harness, rpc, id=1, topic=10) == "GROUP_NOT_FOUND"
    assert call(harness, rpc, name="readers", topic=10) == "GROUP_NOT_FOUND"
    assert call(harness, rpc) == "MALFORMED_REQUEST"


@pytest.mark.parametrize("rpc", OF_A_SESSION)
def test_members_need_a_session(rpc: str) -> None:
    """A caller without a session can neither be a member nor act as one."""
    harness = settled([11])
    assert call(harness, rpc, session=0, name="readers") == "SESSION_REQUIRED"


@pytest.mark.parametrize("rpc", OF_A_SESSION[1:])
def test_strangers_are_not_members(rpc: str) -> None:
    """A session that did not join is refused."""
    harness = settled([11])
    assert call(harness, rpc, session=12, id=1) == "NOT_A_MEMBER"


@pytest.mark.parametrize("offset", [-2, 1, 100])
def test_other_epochs_are_fenced(offset: int) -> None:
    """Only the present epoch and the last one that the member named are accepted."""
    harness = settled([11])
    harness.change_partitions(13)
    harness.settle()
    epoch = harness.member(11).member_epoch
    assert harness.member(11).previous_member_epoch == epoch - 1
    assert refused(lambda: harness.heartbeat(11, epoch + offset)) == "FENCED_MEMBER_EPOCH"
    harness.heartbeat(11, epoch - 1)


def test_forgotten_epoch_is_fenced() -> None:
    """A heartbeat without an epoch is never taken for that of a new member."""
    harness = GroupsHarness()
    harness.create()
    assert harness.join(11) != 0
    assert refused(lambda: harness.heartbeat(11, 0)) == "FENCED_MEMBER_EPOCH"


def test_successor_fences_its_predecessor() -> None:
    """The session whose place was taken over is no longer a member."""
    harness = GroupsHarness()
    harness.create()
    harness.join(11, "one")
    harness.leave(11, keep_place=True)
    harness.join(21, "one")
    assert refused(lambda: harness.heartbeat(11, 1)) == "NOT_A_MEMBER"


def test_only_static_members_keep_places() -> None:
    """A member without instance id cannot leave for a while, and stays a member."""
    harness = settled([11])
    assert refused(lambda: harness.leave(11, keep_place=True)) == "INVALID_OPTION"
    assert [member.session_id for member in harness.members()] == [11]


@pytest.mark.parametrize("name", ["", "a\nb", "x" * 256, "ü" * 128])
def test_invalid_group_names(name: str) -> None:
    """Names are 1 to 255 bytes without control characters."""
    assert refused(lambda: GroupsHarness().create(name)) == "INVALID_GROUP_NAME"


def test_taken_group_name() -> None:
    """A name is unique on its topic, free on others, and free again after a delete."""
    harness = GroupsHarness()
    harness.create("a")
    assert refused(lambda: harness.create("a")) == "GROUP_EXISTS"
    assert harness.create("a", topic=10) == 2
    request = api.DeleteConsumerGroupRequest()
    request.group.name = "a"
    harness.command("DeleteConsumerGroup", request)
    assert harness.create("a") == 3


def test_unknown_assignor() -> None:
    """An assignor that this build does not know is refused, not replaced."""
    request = api.CreateConsumerGroupRequest(name="a")
    request.assignor = 9  # type: ignore[assignment]
    assert (
        refused(lambda: GroupsHarness().command("CreateConsumerGroup", request)) == "INVALID_OPTION"
    )


@pytest.mark.parametrize(
    "join",
    [
        lambda harness: harness.join(12, "x" * 256),
        lambda harness: harness.join(12, rack="a\tb"),
        lambda harness: harness.join(11, "other"),
        lambda harness: harness.join(11, "one", rack="elsewhere"),
    ],
    ids=["long instance id", "control character in rack", "other instance", "other rack"],
)
def test_invalid_joins(join: Callable[[GroupsHarness], int]) -> None:
    """Instance id and rack are names, and a member keeps those it joined with."""
    harness = GroupsHarness()
    harness.create()
    harness.join(11, "one")
    assert refused(lambda: join(harness)) == "INVALID_OPTION"


def test_delete_compares_revisions() -> None:
    """A delete may demand the revision that it decided upon; joins do not change the group."""
    harness = GroupsHarness()
    harness.create()
    revision = harness.group().modified_revision
    harness.join(11)
    request = api.DeleteConsumerGroupRequest(expected_revision=revision + 1)
    request.group.id = 1
    assert refused(lambda: harness.command("DeleteConsumerGroup", request)) == "REVISION_MISMATCH"
    request.expected_revision = revision
    harness.command("DeleteConsumerGroup", request)
    assert not harness.state.members


def test_refusals_carry_their_values() -> None:
    """Every dynamic value of a message is in the details too."""
    harness = settled([11])
    with pytest.raises(Refusal) as caught:
        harness.heartbeat(11, 99)
    assert caught.value.details["epoch"] == "99"
    assert caught.value.details["session_id"] == "11"


def test_sync_tells_what_a_heartbeat_would() -> None:
    """Sync returns the member's epoch and partitions without a command."""
    harness = settled([11], partitions_count=3)
    harness.join(12)
    harness.propose_all()
    request = api.SyncConsumerGroupRequest()
    request.group.id = 1
    answer = harness.query("SyncConsumerGroup", request, session=11)
    member = harness.member(11)
    assert (answer.member_epoch, list(answer.owned_partitions)) == (member.member_epoch, [0, 1])
    assert list(answer.revoking_partitions) == [2]


def test_group_is_described() -> None:
    """Get returns the group with its members by ascending session."""
    harness = settled([12, 11], partitions_count=3)
    group = harness.describe()
    assert (group.id, group.name, group.assignor) == (1, "readers", views.ASSIGNOR_UNIFORM)
    assert (group.stream_id, group.topic_id, group.partitions_count) == (7, 9, 3)
    assert (group.state, group.members_count) == (views.GROUP_STATE_STABLE, 2)
    assert group.group_epoch == group.assignment_epoch
    assert group.created_revision == group.modified_revision == 101
    assert [member.session_id for member in group.members] == [11, 12]
    assert [list(member.owned_partitions) for member in group.members] == [[2], [0, 1]]
    assert all(member.state == views.MEMBER_STATE_STABLE for member in group.members)


def test_groups_are_listed_in_pages() -> None:
    """Pages follow each other by ascending id, without members, and end with an empty token."""
    harness = GroupsHarness()
    for name in "cba":
        harness.create(name)
    harness.join(11, name="b")
    request = api.ListConsumerGroupsRequest(page_size=2)
    page = harness.query("ListConsumerGroups", request)
    assert [(group.id, group.name) for group in page.groups] == [(1, "c"), (2, "b")]
    assert [group.members_count for group in page.groups] == [0, 1]
    assert not page.groups[1].members
    request.page_token = page.next_page_token
    page = harness.query("ListConsumerGroups", request)
    assert [group.name for group in page.groups] == ["a"]
    assert page.next_page_token == ""
    assert not harness.query("ListConsumerGroups", api.ListConsumerGroupsRequest(), topic=10).groups


def test_tokens_belong_to_a_list() -> None:
    """A page token of one topic's groups, or one group's members, is refused for another."""
    harness = GroupsHarness()
    for name in "ab":
        harness.create(name)
    for session_id in (11, 12):
        harness.join(session_id, name="a")
    groups = harness.query("ListConsumerGroups", api.ListConsumerGroupsRequest(page_size=1))
    request = api.ListConsumerGroupsRequest(page_token=groups.next_page_token)
    assert (
        refused(lambda: harness.query("ListConsumerGroups", request, topic=10))
        == "MALFORMED_REQUEST"
    )
    first = api.GetConsumerGroupRequest(page_size=1)
    first.group.name = "a"
    token = harness.query("GetConsumerGroup", first).next_page_token
    for name, wrong in (("b", token), ("a", groups.next_page_token)):
        members = api.GetConsumerGroupRequest(page_token=wrong)
        members.group.name = name
        with pytest.raises(Refusal) as caught:
            harness.query("GetConsumerGroup", members)
        assert caught.value.case == "page_token_of_another_list"
    first.page_token = token
    (member,) = harness.query("GetConsumerGroup", first).group.members
    assert member.session_id == 12


@pytest.mark.parametrize(
    "request_",
    [
        api.ListConsumerGroupsRequest(page_size=1001),
        api.ListConsumerGroupsRequest(page_token="x"),
        api.ListConsumerGroupsRequest(page_token="²"),
        api.ListConsumerGroupsRequest(page_token="1" * 21),
    ],
    ids=["page size", "letters", "superscript digit", "too many digits"],
)
def test_malformed_pages(request_: api.ListConsumerGroupsRequest) -> None:
    """A page that cannot be is refused, not bent."""
    assert (
        refused(lambda: GroupsHarness().query("ListConsumerGroups", request_))
        == "MALFORMED_REQUEST"
    )
