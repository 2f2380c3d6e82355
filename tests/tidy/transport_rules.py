"""`viewstamp/grpc_transport.py` alone makes channels and servers of gRPC."""

from __future__ import annotations

import ast
from typing import Final

from tests.tidy.name_rules import PRODUCT
from tests.tidy.tree import PythonFile

DOOR: Final = "viewstamp/grpc_transport.py"
_MAKERS: Final = frozenset(
    {"grpc.aio.insecure_channel", "grpc.aio.secure_channel", "grpc.aio.server"}
)


def second_ways_to_grpc(file: PythonFile) -> list[str]:
    """Return a line per channel or server that the product makes outside the transport."""
    if str(file.path) == DOOR or not any(map(file.within, PRODUCT)):
        return []
    calls = (node for node in ast.walk(file.tree) if isinstance(node, ast.Call))
    return [
        f"{file.path}:{call.lineno}: calls {ast.unparse(call.func)}; go through {DOOR}"
        for call in calls
        if ast.unparse(call.func) in _MAKERS
    ]
