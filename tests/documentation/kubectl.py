"""A `kubectl` without a cluster: it checks the names of a command against the manifests.

It knows the commands of the operator's guide. It takes overlays as kustomize rendered them into
`deploy/rendered`, and refuses objects, keys, ports and paths that no overlay has.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

import yaml

from tests.deploy.pod import Object

DEPLOY: Final = Path("deploy")
NAMESPACE: Final = "--namespace viewstamp "
KINDS: Final = {"statefulset": "StatefulSet", "service": "Service"}


class NotInManifests(Exception):  # noqa: N818 - reads as the sentence it is
    """A command that would fail, or that this stand-in does not know."""


def rendered(directory: Path) -> list[Object]:
    """Return the objects of a directory below `deploy`. Raises OSError."""
    check((directory / "kustomization.yaml").is_file(), f"{directory} is no kustomization")
    text = (DEPLOY / "rendered" / f"{directory.name}.yaml").read_text()
    return list(yaml.load_all(text, yaml.CSafeLoader))


def objects() -> Iterator[Object]:
    """Yield the objects of all overlays, and of the namespace."""
    for directory in (DEPLOY / "namespace", *sorted((DEPLOY / "overlays").iterdir())):
        yield from rendered(directory)


def named(kind: str, name: str) -> Object:
    """Return an object of any overlay."""
    for each in objects():
        if each["kind"] == KINDS.get(kind, kind) and each["metadata"]["name"] == name:
            return each
    raise NotInManifests(f"no overlay has a {kind} {name!r}")


def pod(name: str) -> Object:
    """Return the template of a pod that a stateful set makes."""
    template: Object = named("statefulset", name.rpartition("-")[0])["spec"]["template"]
    return template


def values(node: Any, key: str) -> Iterator[Any]:
    """Yield the values under a key, at any depth."""
    if isinstance(node, dict):
        if key in node:
            yield node[key]
        node = list(node.values())
    for each in node if isinstance(node, list) else []:
        yield from values(each, key)


def check(found: object, sentence: str) -> None:
    """Refuse a command unless its condition holds."""
    if not found:
        raise NotInManifests(sentence)


def kustomize(directory: str) -> None:
    """Print the rendered objects of a directory."""
    sys.stdout.write(yaml.safe_dump_all(rendered(Path(directory))))


def create_secret(name: str, path: str) -> None:
    """Check that the file exists, and that a pod mounts this secret and key."""
    check(Path(path).is_file(), f"there is no file {path}")
    mounted = [each for each in values(list(objects()), "secret") if each["secretName"] == name]
    check(mounted, f"no pod mounts the secret {name}")
    keys = [item["key"] for each in mounted for item in each.get("items", [])]
    check(Path(path).name in keys, f"pods want {keys} of the secret {name}")


def create_config_map(name: str, key: str, value: str) -> None:
    """Check that a pod reads this key, and that the value is a cluster id."""
    read = [(each["name"], each["key"]) for each in values(list(objects()), "configMapKeyRef")]
    check((name, key) in read, f"pods read {read}")
    check(re.fullmatch("[0-9a-f]{32}", value), f"{value!r} is no cluster id")


def read_file(pod_name: str, path: str) -> None:
    """Check that a file lies in a volume of the pod's first container."""
    mounts = pod(pod_name)["spec"]["containers"][0]["volumeMounts"]
    check(any(path.startswith(each["mountPath"]) for each in mounts), f"no volume holds {path}")


def forward(name: str, port: str) -> None:
    """Check that the service has the port."""
    ports = [each["port"] for each in named("service", name)["spec"]["ports"]]
    check(int(port) in ports, f"the service {name} has the ports {ports}")


IN_NAMESPACE: Final[dict[str, Callable[..., object]]] = {
    r"scale (statefulset)/(\S+) --replicas=[01]": named,
    r"wait --for=delete pod/(\S+) --timeout=\d+s": pod,
    r"create secret generic (\S+) --from-file=(\S+)": create_secret,
    r"create configmap (\S+) --from-literal=([\w-]+)=(\S+)": create_config_map,
    r"rollout status (statefulset)/(\S+)": named,
    # By Python, since no image has a shell or `cat`.
    r"exec (\S+) -- python -c print\(open\('(\S+)'\)\.read\(\)\)": read_file,
    r"port-forward service/(\S+) (\d+)": forward,
}
COMMANDS: Final[dict[str, Callable[..., object]]] = {
    r"apply --kustomize (\S+)": kustomize,
    **{NAMESPACE + pattern: action for pattern, action in IN_NAMESPACE.items()},
}


def run(command: str) -> None:
    """Run a command. Raises NotInManifests, OSError."""
    for pattern, action in COMMANDS.items():
        if (match := re.fullmatch(pattern, command)) is not None:
            action(*match.groups())
            return
    raise NotInManifests("no command of the operator's guide")


def main() -> int:
    """Run the command of the arguments; return the exit code."""
    command = " ".join(sys.argv[1:])
    try:
        run(command)
    except (NotInManifests, OSError) as error:
        sys.stderr.write(f"kubectl {command}: {error}\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
