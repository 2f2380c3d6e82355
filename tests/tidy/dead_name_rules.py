"""Public names are used: no function, method, class or constant stands without a caller."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator
from typing import Final

from tests.tidy.name_rules import PRODUCT
from tests.tidy.tree import PythonFile

API: Final = "callers of the library use it"
SPARK: Final = "Spark calls it"
WIRE: Final = "tests ask how many there are"
SHAPE: Final = "handlers and generated code know it as a part of grpc.aio"
LOOP: Final = "asyncio calls it"
STREAM: Final = "io.BufferedReader calls it"
PROMPT: Final = "the module cmd of the standard library calls it"
# Names that the product itself does not use, each with its user.
GENERATED: Final = "generated code of gRPC calls it"
EXEMPT: Final = {
    "Informer.synced": API,
    "watch_blocking": API,
    "RawSession.submit_request": API,
    "at_least": API,
    "LinesReader.getDefaultReadLimit": SPARK,
    "LinesReader.initialOffset": SPARK,
    "LinesReader.latestOffset": SPARK,
    "LinesReader.prepareForTriggerAvailableNow": SPARK,
    "LinesSource.streamReader": SPARK,
    "_Bounded.readable": STREAM,
    "_Bounded.readinto": STREAM,
    "_Collector.add_registered_method_handlers": GENERATED,
    "_Recorded.on_end": "the SDK of OpenTelemetry calls it",
    "DomainServer.Apply": GENERATED,
    "WireChannelz.GetTopChannels": GENERATED,
    "WireChannelz.GetChannel": GENERATED,
    "WireChannelz.GetSubchannel": GENERATED,
    "WireChannelz.GetServers": GENERATED,
    "WireChannelz.GetServer": GENERATED,
    "WireChannelz.GetServerSockets": GENERATED,
    "WireChannelz.GetSocket": GENERATED,
    "Http2Socket.connection_lost": LOOP,
    "Http2Socket.pause_writing": LOOP,
    "Http2Socket.resume_writing": LOOP,
    "SnapshotPrompt.preloop": PROMPT,
    "SnapshotPrompt.completenames": PROMPT,
    "SnapshotPrompt.completedefault": PROMPT,
    "WireCall.send_initial_metadata": SHAPE,
    "WireCall.set_code": SHAPE,
    "WireCall.set_details": SHAPE,
    "WireCall.set_trailing_metadata": SHAPE,
    "WireServer.add_registered_method_handlers": SHAPE,
    "WireServer.connections": WIRE,
    "WireServer.wait_for_termination": SHAPE,
}


def dead_names(files: Iterable[PythonFile]) -> list[str]:
    """Return a complaint for each public name that no line of the product uses.

    A name of two definitions counts as used if either is used, so the rule finds only plain cases.
    """
    product = [file for file in files if any(map(file.within, PRODUCT))]
    used = {name for file in product for name in _used(file)}
    dead = [
        (file.path, name)
        for file in product
        for name in _defined(file.tree.body)
        if name.rpartition(".")[2] not in used
    ]
    unneeded = EXEMPT.keys() - {name for _, name in dead}
    return [
        f"{path}: nothing of the product uses {name}: delete it, or move it to testkit/"
        for path, name in dead
        if name not in EXEMPT
    ] + [f"{name} is used, or gone: take it out of EXEMPT" for name in sorted(unneeded)]


def dead_alarms(kinds: Iterable[str], files: Iterable[PythonFile], documentation: str) -> list[str]:
    """Return a complaint for each kind of alarm that nothing raises, or that no table explains."""
    raising = [
        file
        for file in files
        if file.within("coordinator") or file.within("viewstamp/certificates")
    ]
    used = {name for file in raising for name in _used(file)}
    kinds = [kind for kind in kinds if kind != "ALARM_KIND_UNSPECIFIED"]
    short = {kind: kind.removeprefix("ALARM_KIND_") for kind in kinds}
    return [f"nothing raises {kind}: reserve its number" for kind in kinds if kind not in used] + [
        f"no row explains {kind}" for kind in kinds if f"\n| `{short[kind]}` |" not in documentation
    ]


def _defined(body: list[ast.stmt], owner: str = "") -> Iterator[str]:
    for node in body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            if not node.name.startswith("_") and not _is_command(node):
                yield f"{owner}{node.name}"
            if isinstance(node, ast.ClassDef) and not owner:
                yield from _defined(node.body, f"{node.name}.")
        elif not owner and isinstance(node, ast.Assign | ast.AnnAssign):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            names = [target.id for target in targets if isinstance(target, ast.Name)]
            yield from (name for name in names if not name.startswith("_"))


def _is_command(node: ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef) -> bool:
    """Whether a decorator such as `@app.command()` makes it part of the command line."""
    calls = [each.func for each in node.decorator_list if isinstance(each, ast.Call)]
    return any(isinstance(call, ast.Attribute) and call.attr == "command" for call in calls)


def _used(file: PythonFile) -> Iterator[str]:
    """Yield the names that a file uses; a package's re-export is no use."""
    passes_on = file.path.name == "__init__.py"
    for node in ast.walk(file.tree):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load):
            yield node.id
        elif isinstance(node, ast.Attribute):
            yield node.attr
        elif isinstance(node, ast.alias) and not passes_on:
            yield node.name.rpartition(".")[2]
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and not passes_on:
            yield node.value
