"""Commands that change a cluster offer the dry runs and the guards of what they call."""

from __future__ import annotations

from typing import Any, Final

import pytest

from testkit.api_methods import API_FILES
from tests.viewstamp.cli.test_helpful_options import TYPER, commands_below
from viewstamp.routing import MethodKind, methods_of_file

# Command -> the writes that it calls.
WRITES: Final = {
    "broker drain": "UpdateBroker",
    "broker register": "RegisterBroker",
    "broker undrain": "UpdateBroker",
    "broker unregister": "UnregisterBroker",
    "cluster describe": "SetClusterDescription",
    "cluster feature-level": "RaiseFeatureLevel",
    "cluster step-down": "StepDown",
    "group create": "CreateConsumerGroup",
    "group delete": "DeleteConsumerGroup",
    "group delete-offsets": "DeleteOffsets",
    "group reset-offsets": "ResetOffsets",
    "group update": "UpdateConsumerGroup",
    "logout": "Logout",
    "replica add": "AddReplica",
    "replica promote": "PromoteReplica",
    "replica remove": "RemoveReplica",
    "session end": "EndUserSessions",
    "snapshot create": "CreateSnapshot",
    "snapshot delete": "DeleteSnapshot",
    "snapshot pin": "SetSnapshotRetention",
    "snapshot prune": "PruneSnapshots",
    "snapshot unpin": "SetSnapshotRetention",
    "stream create": "CreateStream",
    "stream delete": "DeleteStream",
    "stream purge": "PurgeStream",
    "stream rename": "UpdateStream",
    "token create": "CreatePersonalAccessToken",
    "token delete": "DeletePersonalAccessToken",
    "token revoke": "DeleteUserToken",
    "topic create": "CreateTopic",
    "topic delete": "DeleteTopic",
    "topic partitions add": "CreatePartitions",
    "topic partitions remove": "DeletePartitions",
    "topic place": "PlacePartitions",
    "topic purge": "PurgeTopic",
    "topic update": "UpdateTopic",
    "user create": "CreateUser",
    "user delete": "DeleteUser",
    "user password": "ChangePassword",
    "user permissions": "UpdatePermissions",
    "user update": "UpdateUser",
}
# They guard what they change by the revisions that they have read themselves; `restore` changes
# nothing that is there.
PLANNED: Final = frozenset({"apply", "import strimzi", "import wikimedia", "restore"})
# Writes that no command calls: they are for programs, which act for themselves.
OF_PROGRAMS: Final = frozenset(
    {
        *("RegisterSession", "EndSession", "Transact"),
        *("ResignBroker", "UpdateInSync", "TruncatePartitions", "ReportPartitionEnds"),
        *("JoinConsumerGroup", "LeaveConsumerGroup", "HeartbeatConsumerGroup", "CommitOffsets"),
    }
)
# Command and option that it lacks -> why.
LACKING: Final = {
    ("logout", "--dry-run"): "the login is forgotten here whatever the cluster answers",
}
OPTIONS: Final = {"--dry-run": "validate_only", "--expected-revision": "expected_revision"}
METHODS: Final = {
    method.name: method
    for file in API_FILES
    for method in methods_of_file(file)
    if method.kind is MethodKind.COMMAND and not method.internal
}
COMMANDS: Final[dict[str, Any]] = {
    path.removeprefix("viewstamp "): command
    for path, command in commands_below(TYPER, "viewstamp")
    if not hasattr(command, "list_commands")
}


def options_of(name: str) -> set[str]:
    """Return the options of a command."""
    return {option for parameter in COMMANDS[name].params for option in parameter.opts}


def test_the_table_has_every_write() -> None:
    """Each write has a command or is for programs, and what has such an option is in the table."""
    assert {*WRITES.values(), *OF_PROGRAMS} == METHODS.keys()
    assert not OF_PROGRAMS & {*WRITES.values()}
    guarded = {name for name in COMMANDS if options_of(name) & OPTIONS.keys()}
    assert guarded - PLANNED == WRITES.keys() - {name for name, _ in LACKING}
    assert all("--dry-run" in options_of(name) for name in PLANNED)


@pytest.mark.parametrize("name", WRITES)
def test_a_write_offers_what_its_method_knows(name: str) -> None:
    """A dry run and an expected revision are options wherever the method has the field."""
    fields = METHODS[WRITES[name]].request.DESCRIPTOR.fields_by_name
    for option, field in OPTIONS.items():
        if (name, option) in LACKING:
            assert field in fields
        else:
            assert (option in options_of(name)) == (field in fields), option
