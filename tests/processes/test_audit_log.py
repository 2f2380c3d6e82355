"""The audit log of a real replica."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import grpc
import pytest
from grpc_channelz.v1 import channelz_pb2
from grpc_channelz.v1.channelz_pb2_grpc import ChannelzStub
from grpc_reflection.v1alpha import reflection_pb2
from grpc_reflection.v1alpha.reflection_pb2_grpc import ServerReflectionStub
from typer.testing import CliRunner

from tests.processes.callers import Caller, SubmitStream, refused, span
from tests.processes.processes import ReplicaProcesses, eventually, replica, unique
from viewstamp.api.streams.v1 import streams_service_pb2 as streams
from viewstamp.api.users.v1 import users_service_pb2 as users
from viewstamp.audit.files import read
from viewstamp.cli.app import app

pytestmark = pytest.mark.xdist_group("processes")


def recorded(data: Path, wanted: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
    """Return the newest wanted record, once it is written."""

    def look() -> dict[str, Any] | None:
        found = [record for record in read(data / "audit") if wanted(record)]
        return found[-1] if found else None

    return eventually(look)


def is_call(method: str, outcome: str, **request: str) -> Callable[[dict[str, Any]], bool]:
    """Return a predicate: a record of a call of a method with that outcome and request.

    Without `request` any request will do. Other tests write into the audit log of the shared
    replica, too, and a call that could not be read has no request.
    """

    def wanted(record: dict[str, Any]) -> bool:
        return record["outcome"] == outcome and any(
            part["method"] == method and request.items() <= (part.get("request") or {}).items()
            for part in record.get("methods", ())
        )

    return wanted


def test_changes_and_denials_are_told(root: Caller, shared: ReplicaProcesses) -> None:
    """The log has who created what, which call was denied, which login failed, and no secret."""
    name, stream = unique("user"), unique("stream")
    root.call(root.users.CreateUser, users.CreateUserRequest(username=name, password="s3cret!"))
    with refused():
        Caller(root.channel).logged_in(name, "wr0ng!")
    powerless = Caller(root.channel).logged_in(name, "s3cret!")
    with refused():
        powerless.create_stream(stream)
    open_stream = SubmitStream(root.with_session())
    open_stream.ask(1, span(200, streams.CreateStreamRequest(name=stream)))

    created = recorded(shared.data, is_call("CreateUser", "ok", username=name))
    assert (created["user"], created["from"]) == (0, "127.0.0.1")
    assert created["methods"][0]["request"] == {"username": name}
    assert created["revision"] > 0
    denied = recorded(shared.data, is_call("CreateStream", "refused", name=stream))
    assert (denied["reason"], denied["methods"][0]["request"]) == (
        "PERMISSION_DENIED",
        {"name": stream},
    )
    failed = recorded(shared.data, is_call("Login", "refused", username=name))
    assert (failed["kind"], failed["reason"]) == ("login", "INVALID_CREDENTIALS")
    assert failed["methods"][0]["request"] == {"username": name}
    made = is_call("CreateStream", "ok", name=stream)
    packed = recorded(shared.data, lambda record: "session" in record and made(record))
    assert packed["methods"][0]["request"] == {"name": stream}
    text = (shared.data / "audit" / "audit.jsonl").read_text()
    assert "s3cret!" not in text and "wr0ng!" not in text and root.token not in text


def test_command_line_filters(root: Caller, shared: ReplicaProcesses) -> None:
    """`viewstamp audit` shows the refused calls of one method, as lines or as JSON."""
    stream = unique("stream")
    root.create_stream(stream)
    with refused():
        root.create_stream(stream)
    recorded(shared.data, is_call("CreateStream", "refused", name=stream))
    flags = ["audit", "--data-directory", str(shared.data), "--method", "CreateStream", "--denied"]
    lines = CliRunner().invoke(app, flags).output
    assert "STREAM_EXISTS" in lines and ": ok" not in lines
    said = CliRunner().invoke(app, [*flags, "--user", "0", "--json"]).output.splitlines()
    assert json.loads(said[-1])["reason"] == "STREAM_EXISTS"
    assert CliRunner().invoke(app, [*flags, "--since-revision", str(2**60)]).output == ""


def test_what_is_closed_stays_closed() -> None:
    """`--audit-bytes=0` keeps no log; flags close reflection and the past; channelz needs one."""
    with replica(flags=["--audit-bytes=0", "--no-reflection", "--no-history"]) as running:
        with running.channel() as channel:
            reflection: Any = ServerReflectionStub(channel)
            list_all = reflection_pb2.ServerReflectionRequest(list_services="")
            with pytest.raises(grpc.RpcError) as caught:
                list(reflection.ServerReflectionInfo(iter([list_all])))
            assert caught.value.code() is grpc.StatusCode.UNIMPLEMENTED
            channelz: Any = ChannelzStub(channel)
            with pytest.raises(grpc.RpcError) as caught:
                channelz.GetServers(channelz_pb2.GetServersRequest())
            assert caught.value.code() is grpc.StatusCode.UNIMPLEMENTED
        with running.root() as root, refused() as failure:
            root.call(root.streams.ListStreams, streams.ListStreamsRequest(), consistency="at=1")
        assert failure.it.reason == "UNIMPLEMENTED"
        assert not (running.data / "audit").exists()
