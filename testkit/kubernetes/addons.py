"""What a cluster adds to Kubernetes: names, network policies that are enforced, and volumes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Final

import yaml

from testkit.kubernetes import scratch_image
from testkit.kubernetes.commands import Daemon
from testkit.kubernetes.credentials import Credentials
from testkit.kubernetes.layout import (
    CLUSTER_DOMAIN,
    CONTROL_PLANE_ADDRESS,
    POLICY_QUEUE,
    Layout,
    program,
)
from testkit.kubernetes.node_files import PAUSE_IMAGE

_ADMINISTRATORS: Final = "system:masters"
_SYSTEM: Final = "kube-system"
_POLICIES: Final = "kube-network-policies"
_POLICIES_IMAGE: Final = "viewstamp.test/kube-network-policies:1"
_STORAGE: Final = "local-path-provisioner"
_BUSYBOX: Final = Path("/bin/busybox")
_SHELL_PROGRAMS: Final = ("busybox", "sh", "mkdir", "rm", "sleep", "wget", "nc")


def write_images(directory: Path) -> list[Path]:
    """Write the images of what runs in pods: a shell, which also holds pods, and policies."""
    shell = directory / "busybox.tar"
    programs = dict.fromkeys(_SHELL_PROGRAMS, _BUSYBOX)
    scratch_image.write(shell, PAUSE_IMAGE, programs, ["/bin/busybox", "sleep", "infinity"])
    policies = directory / "policies.tar"
    path = Path(program(_POLICIES))
    scratch_image.write(policies, _POLICIES_IMAGE, {_POLICIES: path}, [f"/bin/{_POLICIES}"])
    return [shell, policies]


def start_names(layout: Layout, credentials: Credentials) -> Daemon:
    """Start the server of the cluster's names; it answers at the control plane's address."""
    kubeconfig = credentials.client("names", "viewstamp-test-names", _ADMINISTRATORS)
    file = layout.of("names") / "Corefile"
    file.write_text(
        f""".:53 {{
    bind {CONTROL_PLANE_ADDRESS}
    errors
    kubernetes {CLUSTER_DOMAIN} in-addr.arpa {{
        kubeconfig {kubeconfig}
        ttl 5
    }}
}}
"""
    )
    return Daemon(layout.logs / "names.log", program("names"), "-conf", str(file))


def start_storage(layout: Layout, credentials: Credentials) -> Daemon:
    """Start what makes a volume for each claim: a directory that belongs to one node."""
    kubeconfig = credentials.client("storage", "viewstamp-test-storage", _ADMINISTRATORS)
    directory = layout.of("storage")
    volumes = {
        "node": "DEFAULT_PATH_FOR_NON_LISTED_NODES",
        "paths": [str(layout.of("volumes"))],
    }
    file = directory / "config.json"
    file.write_text(json.dumps({"nodePathMap": [volumes]}))
    pod = directory / "helperPod.yaml"
    pod.write_text(yaml.safe_dump(_helper_pod()))
    return Daemon(
        layout.logs / "local-path-provisioner.log",
        program(_STORAGE),
        *("start", "--config", str(file), "--kubeconfig", str(kubeconfig)),
        *("--namespace", _SYSTEM, "--helper-image", PAUSE_IMAGE),
        *("--helper-pod-file", str(pod), "--provisioner-name", "viewstamp.test/local"),
        *("--configmap-name", _STORAGE, "--service-account-name", "default"),
    )


def start_certificates(layout: Layout, credentials: Credentials) -> Daemon:
    """Start cert-manager's controllers, once the API server knows their resources."""
    kubeconfig = credentials.client("certificates", "viewstamp-test-certificates", _ADMINISTRATORS)
    log = layout.logs / "certificates.log"
    return Daemon(log, program("certificates"), f"-kubeconfig={kubeconfig}")


def definitions() -> Path:
    """Return the directory with the resources of cert-manager and of Prometheus' operator."""
    return Path(program("definitions"))


def manifest() -> str:
    """Return the objects of the add-ons, for kubectl."""
    objects = [_storage_class(), _storage_scripts(), *_policy_account(), _policy_pods()]
    return yaml.safe_dump_all(objects)


def _helper_pod() -> dict[str, Any]:
    container = {"name": "helper", "image": PAUSE_IMAGE, "imagePullPolicy": "Never"}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "helper"},
        "spec": {"tolerations": [{"operator": "Exists"}], "containers": [container]},
    }


def _storage_class() -> dict[str, Any]:
    return {
        "apiVersion": "storage.k8s.io/v1",
        "kind": "StorageClass",
        "metadata": {
            "name": "local",
            "annotations": {
                "storageclass.kubernetes.io/is-default-class": "true",
                # Volumes of this kind get the group of the pod; plain directories do not.
                "defaultVolumeType": "local",
            },
        },
        "provisioner": "viewstamp.test/local",
        "volumeBindingMode": "WaitForFirstConsumer",
        "reclaimPolicy": "Delete",
    }


def _storage_scripts() -> dict[str, Any]:
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": _STORAGE, "namespace": _SYSTEM},
        "data": {
            "setup": '#!/bin/sh\nset -eu\nmkdir -m 0777 -p "$VOL_DIR"\n',
            "teardown": '#!/bin/sh\nset -eu\nrm -rf "$VOL_DIR"\n',
        },
    }


def _policy_account() -> list[dict[str, Any]]:
    account = {"name": _POLICIES, "namespace": _SYSTEM}
    return [
        {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": account},
        {
            "apiVersion": "rbac.authorization.k8s.io/v1",
            "kind": "ClusterRole",
            "metadata": {"name": _POLICIES},
            "rules": [
                {
                    "apiGroups": ["", "networking.k8s.io"],
                    "resources": ["pods", "namespaces", "networkpolicies"],
                    "verbs": ["list", "watch"],
                }
            ],
        },
        {
            "apiVersion": "rbac.authorization.k8s.io/v1",
            "kind": "ClusterRoleBinding",
            "metadata": {"name": _POLICIES},
            "roleRef": {
                "apiGroup": "rbac.authorization.k8s.io",
                "kind": "ClusterRole",
                "name": _POLICIES,
            },
            "subjects": [{"kind": "ServiceAccount", **account}],
        },
    ]


def _policy_pods() -> dict[str, Any]:
    container = {
        "name": _POLICIES,
        "image": _POLICIES_IMAGE,
        "imagePullPolicy": "Never",
        "args": ["--hostname-override=$(NODE)", "--disable-nri", f"--nfqueue-id={POLICY_QUEUE}"],
        "env": [{"name": "NODE", "valueFrom": {"fieldRef": {"fieldPath": "spec.nodeName"}}}],
        "securityContext": {"privileged": True},
    }
    labels = {"app": _POLICIES}
    return {
        "apiVersion": "apps/v1",
        "kind": "DaemonSet",
        "metadata": {"name": _POLICIES, "namespace": _SYSTEM},
        "spec": {
            "selector": {"matchLabels": labels},
            "template": {
                "metadata": {"labels": labels},
                "spec": {
                    "hostNetwork": True,
                    "serviceAccountName": _POLICIES,
                    "tolerations": [{"operator": "Exists"}],
                    "containers": [container],
                },
            },
        },
    }
