"""As much of a Kubernetes API server as Helm needs to look one StatefulSet up."""

from __future__ import annotations

import contextlib
import json
import threading
from collections.abc import Iterator, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import yaml

from tests.deploy.pod import NAMESPACE, Object
from tests.deploy.tools import KUBERNETES

_GROUP = {
    "name": "apps",
    "versions": [{"groupVersion": "apps/v1", "version": "v1"}],
    "preferredVersion": {"groupVersion": "apps/v1", "version": "v1"},
}
_RESOURCE = {
    "name": "statefulsets",
    "singularName": "statefulset",
    "namespaced": True,
    "kind": "StatefulSet",
    "verbs": ["get", "list"],
}
_LISTS: Mapping[str, Any] = {
    "/version": {"major": "1", "minor": "37", "gitVersion": f"v{KUBERNETES}"},
    "/api": {"kind": "APIVersions", "versions": ["v1"]},
    "/apis": {"kind": "APIGroupList", "apiVersion": "v1", "groups": [_GROUP]},
    "/api/v1": {"kind": "APIResourceList", "groupVersion": "v1", "resources": []},
    "/apis/apps/v1": {
        "kind": "APIResourceList",
        "groupVersion": "apps/v1",
        "resources": [_RESOURCE],
    },
}
_SET = f"/apis/apps/v1/namespaces/{NAMESPACE}/statefulsets/viewstamp"
_MISSING = {"kind": "Status", "apiVersion": "v1", "status": "Failure", "reason": "NotFound"}


@contextlib.contextmanager
def serving(stateful_set: Object | None, directory: Path) -> Iterator[Path]:
    """Serve a StatefulSet, or none; yield the file by which kubectl and Helm find the server."""
    answers = dict(_LISTS)
    if stateful_set is not None:
        answers[_SET] = stateful_set

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            answer = answers.get(self.path.partition("?")[0])
            body = json.dumps(answer or {**_MISSING, "code": 404}).encode()
            self.send_response(200 if answer else 404)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *arguments: Any) -> None:
            """Write nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield _kubeconfig(server.server_port, directory)
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def _kubeconfig(port: int, directory: Path) -> Path:
    path = directory / "kubeconfig"
    document = {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": "c", "cluster": {"server": f"http://127.0.0.1:{port}"}}],
        "users": [{"name": "u", "user": {}}],
        "contexts": [{"name": "x", "context": {"cluster": "c", "user": "u"}}],
        "current-context": "x",
    }
    path.write_text(yaml.safe_dump(document))
    return path
