"""The overlay whose services run in pods of their own: schemas, flags that agree, and volumes."""

from __future__ import annotations

import argparse

import kubernetes_validate
import pytest
from kubernetes_validate.utils import latest_version

import coordinator.app.config
from services.runtime import encryption
from tests.deploy.pod import (
    APART,
    FOREIGN_GROUPS,
    KUBERNETES_MIN,
    NAMESPACE,
    SIDECARS,
    Key,
    Object,
    arguments,
    module,
    mounts,
    overlay,
)
from tests.deploy.pod import coordinator as coordinator_of
from viewstamp.routing import SERVICE_NAMES

REPLICAS = 3


@pytest.fixture(name="objects")
def _objects() -> dict[Key, Object]:
    return overlay(APART)


def pod_of(objects: dict[Key, Object]) -> Object:
    """Return the pod that the set of services makes."""
    found: Object = objects["StatefulSet", "viewstamp-services"]["spec"]["template"]["spec"]
    return found


@pytest.mark.parametrize("version", [KUBERNETES_MIN, latest_version()])
def test_objects_conform_to_the_schemas(objects: dict[Key, Object], version: str) -> None:
    """Each object is valid, without unknown fields, for the oldest and the newest Kubernetes."""
    for found in objects.values():
        if found["apiVersion"].partition("/")[0] not in FOREIGN_GROUPS:
            kubernetes_validate.validate(found, version, strict=True)


def test_coordinator_takes_its_flags(objects: dict[Key, Object]) -> None:
    """Each coordinator reaches the services of its own replica, with a certificate of its own."""
    container = coordinator_of(objects)
    for replica in range(REPLICAS):
        config = coordinator.app.config.parse(arguments(container, replica), {})

        host = f"viewstamp-services-{replica}.viewstamp-services"
        assert config.services == {
            name: f"{host}:{7441 + place}" for place, name in enumerate(SERVICE_NAMES)
        }
        assert config.service_tls is not None


def test_services_take_their_flags(objects: dict[Key, Object]) -> None:
    """Each service listens where its port is named, behind TLS."""
    containers = pod_of(objects)["containers"]
    assert [each["name"] for each in containers] == list(SIDECARS)
    assert [module(each) for each in containers] == [f"services.{name}" for name in SERVICE_NAMES]
    parser = argparse.ArgumentParser()
    parser.add_argument("--listen")
    encryption.add_arguments(parser)
    for each in containers:
        options, _ = parser.parse_known_args(each["args"])

        assert encryption.files_of(options) is not None
        assert options.listen == f"0.0.0.0:{each['ports'][0]['containerPort']}"


def test_volumes_are_used(objects: dict[Key, Object]) -> None:
    """Each volume is mounted, the cluster key where a flag names it, and no socket is left."""
    pods = (pod_of(objects), objects["StatefulSet", "viewstamp"]["spec"]["template"]["spec"])
    for pod in pods:
        used = {name for each in pod["containers"] for name in mounts(each).values()}

        assert used - {"data"} == {volume["name"] for volume in pod["volumes"]}
        assert "sockets" not in used
        for each in pod["containers"]:
            named = any(arg.startswith("--cluster-key=") for arg in each["args"])
            assert ("cluster-key" in mounts(each).values()) == named


def test_objects_lie_in_the_namespace(objects: dict[Key, Object]) -> None:
    """Every object lies in the namespace that is made apart from it, and none is a secret."""
    assert {found["metadata"]["namespace"] for found in objects.values()} == {NAMESPACE}
    assert "Secret" not in {kind for kind, _ in objects}
