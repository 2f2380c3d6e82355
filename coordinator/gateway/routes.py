"""The methods that are served, as the services claim them."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from types import ModuleType
from typing import Final

from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message import DecodeError

from coordinator.gateway.request_runs import method_shape
from coordinator.mux.run_shapes import Shape
from viewstamp.api.cluster.v1 import cluster_service_pb2
from viewstamp.api.domain.v1 import domain_service_pb2
from viewstamp.api.errors.v1.errors_pb2 import Reason
from viewstamp.api.sessions.v1 import sessions_service_pb2
from viewstamp.api.snapshots.v1 import snapshots_service_pb2
from viewstamp.api.submit.v1 import submit_service_pb2
from viewstamp.errors import Refusal
from viewstamp.framing import frame
from viewstamp.routing import (
    Method,
    MethodKind,
    batch_class,
    methods_of_file,
    pool_of,
    sets_field,
)

NAMED_CHARACTERS_MAX: Final = 200

# Served by the coordinator itself: modules and the methods claimed in them.
_LOCAL: Final[tuple[tuple[ModuleType, frozenset[str]], ...]] = (
    (
        sessions_service_pb2,
        frozenset(m.name for m in methods_of_file(sessions_service_pb2.DESCRIPTOR)),
    ),
    (submit_service_pb2, frozenset({"Transact"})),
    (
        cluster_service_pb2,
        frozenset(
            {
                *("GetStatus", "ListAlarms", "RaiseFeatureLevel", "SetClusterDescription"),
                "BeginEpoch",
            }
        ),
    ),
    (
        snapshots_service_pb2,
        frozenset(m.name for m in methods_of_file(snapshots_service_pb2.DESCRIPTOR)),
    ),
)


class Routes:
    """Claimed methods by path and by code; grows as services connect.

    A claimed method may not be allowed yet: one newer than the feature level in force is refused to
    all callers, and nobody proposes it, so that every build can read the log.
    """

    def __init__(self, level_in_force: Callable[[], int] = lambda: 1) -> None:
        self.level_in_force = level_in_force
        self._by_path: dict[str, Method] = {}
        self._by_code: dict[int, Method] = {}
        self._shapes: dict[int, Shape] = {}
        for module, claimed in _LOCAL:
            for method in methods_of_file(module.DESCRIPTOR):
                if method.name in claimed:
                    self.add(method)

    def update(self, describe: domain_service_pb2.DescribeResponse) -> None:
        """Take in what a service claims. Raises ValueError if a code is already another's."""
        pool = pool_of(describe.file_descriptors)
        claimed = set(describe.methods)
        for method in _methods(pool, describe.file_descriptors):
            if method.full_name in claimed:
                self.add(method)

    def add(self, method: Method) -> None:
        """Serve one method. Raises ValueError if its code is already another's."""
        other = self._by_code.get(method.code)
        if other is not None and other.full_name != method.full_name:
            raise ValueError(
                f"code {method.code} is claimed by {other.full_name} and {method.full_name}:"
                " codes must be unique in the cluster"
            )
        self._by_path[method.path] = method
        self._by_code[method.code] = method
        self._shapes[method.code] = method_shape(method)

    def methods(self) -> Iterable[Method]:
        """Return all claimed methods."""
        return self._by_code.values()

    def may_enter(self, code: int) -> bool:
        """Return whether the feature level in force allows a command; unclaimed codes need none."""
        method = self._by_code.get(code)
        return method is None or method.since_level <= self.level_in_force()

    def is_one_at_a_time(self, code: int) -> bool:
        """Return whether one request of a code stands for every other, so that one is pending."""
        method = self._by_code.get(code)
        return method is not None and method.one_at_a_time

    def find(self, code: int) -> Method | None:
        """Return the method of a code, public or not, None if nobody claims it."""
        return self._by_code.get(code)

    def shape(self, code: int) -> Shape:
        """Return what commands of a claimed code add to the runs of a request."""
        return self._shapes[code]

    def named(self, path: str) -> Method | None:
        """Return the method of a gRPC path, public or not, None if nobody claims it."""
        return self._by_path.get(path)

    def public(self, path: str) -> Method:
        """Return the method of a gRPC path. Raises Refusal UNIMPLEMENTED."""
        method = self._by_path.get(path)
        if method is None or method.internal:
            raise Refusal(
                Reason.REASON_UNIMPLEMENTED,
                f"no service of this cluster serves {_clipped(path)}",
                method=_clipped(path),
            )
        self.check_level(method)
        return method

    def public_code(self, code: int, kind: MethodKind) -> Method:
        """Return the method of a code from outside. Raises Refusal UNIMPLEMENTED."""
        method = self._by_code.get(code)
        if method is None or method.internal or method.kind is not kind:
            raise Refusal(
                Reason.REASON_UNIMPLEMENTED,
                f"no service of this cluster serves a {kind.value} of code {code}",
                code=code,
            )
        if method.alone:
            raise Refusal(
                Reason.REASON_MALFORMED_REQUEST,
                f"{method.name} cannot be part of a request of several commands: call it"
                " alone, without"
                " a session",
                method=method.name,
            )
        self.check_level(method)
        return method

    def check_level(self, method: Method) -> None:
        """Raise Refusal FEATURE_LEVEL_REQUIRED if a method is above the level in force."""
        if method.since_level == 1:
            return  # level 1 is always in force
        in_force = self.level_in_force()
        if method.since_level > in_force:
            raise _level_required(method, method.since_level, in_force)

    def check_command(self, method: Method, payload: bytes) -> None:
        """Do what `check_fields` does for one command."""
        if method.field_levels:
            self.check_fields(method, frame(payload))

    def check_fields(self, method: Method, items: bytes) -> None:
        """Raise Refusal FEATURE_LEVEL_REQUIRED if a command sets a field above the level in force.

        `items` are framed commands. Machines ignore such a field below its level: somebody who only
        wants to validate would change something. Malformed commands pass: their owner refuses them.
        """
        if not method.field_levels:
            return
        in_force = self.level_in_force()
        newer = {name: level for name, level in method.field_levels.items() if level > in_force}
        if not newer:
            return
        try:
            batch = batch_class(method.request.DESCRIPTOR)  # type: ignore[arg-type]
            commands = batch.FromString(items).items
        except DecodeError:
            return
        for name, level in newer.items():
            if any(sets_field(command, name) for command in commands):
                raise _level_required(method, level, in_force, field=name)


def _level_required(method: Method, required: int, in_force: int, field: str = "") -> Refusal:
    what = f"`{field}` of {method.name}" if field else method.name
    return Refusal(
        Reason.REASON_FEATURE_LEVEL_REQUIRED,
        f"{what} needs feature level {required}, and {in_force} is in"
        " force: once every replica runs a build that knows it, raise the level by"
        " `viewstamp cluster feature-level --raise`",
        method=method.name,
        required=required,
        in_force=in_force,
        **({"field": field} if field else {}),
    )


def _clipped(path: str) -> str:
    """Return as much of a caller's path as fits the metadata of an answer."""
    name = path.removeprefix("/")
    return name if len(name) <= NAMED_CHARACTERS_MAX else name[:NAMED_CHARACTERS_MAX] + "..."


def _methods(pool: DescriptorPool, encoded: Iterable[bytes]) -> Iterable[Method]:
    from google.protobuf.descriptor_pb2 import FileDescriptorProto

    for file in encoded:
        name = FileDescriptorProto.FromString(file).name
        yield from methods_of_file(pool.FindFileByName(name))
