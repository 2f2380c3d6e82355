"""The chart is what kustomize makes, by the real programs; and it refuses what cannot be."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest

from tests.deploy.api_server import serving
from tests.deploy.pod import GROWN, REPLICATED, ROOT, Object, overlay
from tests.deploy.tools import CHART, charted, charted_objects, tool, values_of
from tools.manifests.__main__ import differences, files
from tools.manifests.features import FEATURES, Features, closed, variants
from tools.manifests.kustomization import Objects, RenderError, objects_of, run, variant

pytestmark = pytest.mark.deploy

OTHERS = 24


def _others() -> list[Features]:
    """Return combinations that the templates were not made of."""
    chance, made = random.Random(7), set(variants())
    found: dict[Features, None] = {}
    while len(found) < OTHERS:
        chosen = closed(name for name in FEATURES if chance.random() < 0.5)
        if chosen not in made:
            found[chosen] = None
    return list(found)


def test_committed_files_are_what_the_programs_make() -> None:
    """The renderings and the chart in the repository are those of its manifests."""
    deploy = ROOT / "deploy"

    assert differences(deploy, files(tool("kustomize"), deploy)) == []


def _without_checksum(objects: Objects) -> Objects:
    """Take out what only a chart needs: kustomize has the checksum in the name."""
    for (kind, _), found in objects.items():
        if kind == "StatefulSet":
            template: Any = found["spec"]["template"]
            del template["metadata"]["annotations"]["checksum/settings"]
    return objects


@pytest.mark.parametrize(
    "chosen", [*variants(), *_others()], ids=lambda chosen: "+".join(sorted(chosen)) or "nothing"
)
def test_chart_renders_what_kustomize_does(chosen: Features) -> None:
    """With any features on, helm and kustomize make the same objects."""
    expected = variant(tool("kustomize"), ROOT / "deploy", chosen)

    assert _without_checksum(charted_objects(*values_of(chosen))) == expected


@pytest.mark.parametrize(
    ("values", "text"),
    [
        (["image.repository=registry.example.com/v"], "registry.example.com/v:0.1.0"),
        (["image.digest=sha256:ab"], "viewstamp@sha256:ab"),
        (["resources.coordinator.requests.cpu=7"], '"cpu":7'),
        (["storage.size=99Gi"], 'storage: "99Gi"'),
        (["storage.className=fast"], 'storageClassName: "fast"'),
        (["pod.priorityClassName=high"], 'priorityClassName: "high"'),
        (["pod.imagePullSecrets[0].name=pull"], 'imagePullSecrets: [{"name":"pull"}]'),
        (["pod.nodeSelector.disk=fast"], 'nodeSelector: {"disk":"fast"}'),
        (["settings.quotaBytesPerUser=1073741824"], '"1073741824"'),
        (["metrics.enabled=true", "metrics.namespace=seen"], 'metadata.name: "seen"'),
        (["traces.enabled=true", "traces.endpoint=http://a:1"], "--otlp-endpoint=http://a:1"),
        (
            ["archive.enabled=true", "analytics.enabled=true", "analytics.image.digest=sha256:cd"],
            "viewstamp-analytics@sha256:cd",
        ),
        (
            ["archive.enabled=true", "analytics.enabled=true", "analytics.schedule=3 4 * * *"],
            'schedule: "3 4 * * *"',
        ),
        (["archive.enabled=true", "archive.schedule=1 2 * * *"], 'schedule: "1 2 * * *"'),
        (["members.enabled=true", "members.pods=7"], "replicas: 7"),
        (["logArchive.enabled=true", "logArchive.port=9000"], "port: 9000"),
        (
            [
                *("logArchive.enabled=true", "logArchiveVolume.enabled=true"),
                "logArchiveVolume.accessMode=ReadWriteOnce",
                "logArchiveVolume.size=3Gi",
            ],
            'storage: "3Gi"',
        ),
        (
            ["tls.enabled=true", "certManager.enabled=true", "certManager.dnsNames={a.example}"],
            '- "a.example"',
        ),
    ],
    ids=lambda value: value[-1] if isinstance(value, list) else "",
)
def test_values_arrive(values: list[str], text: str) -> None:
    """A value that is set stands in what is rendered, and is not there without it."""
    assert text in charted(*values)
    assert text not in charted(*(value for value in values if value.endswith("enabled=true")))


def test_changed_setting_changes_the_pods() -> None:
    """A setting changes the checksum on the pods' template, so that they are rolled out."""
    before, after = (
        charted_objects(f"settings.logLevel={level}")["StatefulSet", "viewstamp"]["spec"][
            "template"
        ]
        for level in ("info", "debug")
    )

    assert before["metadata"] != after["metadata"]
    assert before["spec"] == after["spec"]


@pytest.mark.parametrize(
    ("values", "complaint"),
    [
        (["replicas=2"], "replicas"),
        (["tsl.enabled=true"], "tsl"),
        (["settings.loglevel=debug"], "loglevel"),
        (["tls.enabled=perhaps"], "tls"),
        (["peerTls.enabled=true"], "peerTls.enabled needs replicas: 3 or 5, or members"),
        (["members.enabled=true", "members.pods=14"], "members/pods|members.pods"),
        (["members.pods=3"], "members.pods needs members.enabled"),
        (["logArchiveKey.enabled=true"], "logArchiveKey.enabled needs logArchive.enabled"),
        (["restoreDryRun.enabled=true"], "restoreDryRun.enabled needs restore.enabled"),
        (["analytics.enabled=true"], "analytics.enabled needs archive.enabled"),
        (["certManagerServices.enabled=true"], "certManagerServices.enabled needs servicesApart"),
        (["certManager.enabled=true"], "certManager.enabled needs tls.enabled"),
        (["prometheusOperator.enabled=true"], "prometheusOperator.enabled needs metrics.enabled"),
    ],
    ids=lambda value: value[0] if isinstance(value, list) else "",
)
def test_values_that_do_not_fit_are_refused(values: list[str], complaint: str) -> None:
    """A misspelt name, a wrong type, and a feature without what it needs end the rendering."""
    with pytest.raises(RenderError, match=complaint):
        charted(*values)


def scaled_down(name: str) -> Object:
    """Return the set of a cluster that somebody has scaled to none for a backup."""
    found = overlay(name)["StatefulSet", "viewstamp"]
    found["spec"]["replicas"] = 0
    return found


@pytest.mark.parametrize(
    ("name", "count", "was"),
    [(REPLICATED, 1, 3), (REPLICATED, 5, 3), ("local", 3, 1), ("local", 5, 1)],
)
def test_number_of_replicas_stays(tmp_path: Path, name: str, count: int, was: int) -> None:
    """For a cluster that exists another number of replicas is refused."""
    with (
        serving(scaled_down(name), tmp_path) as kubeconfig,
        pytest.raises(RenderError, match=f"the cluster here was created with {was}"),
    ):
        charted(f"replicas={count}", kubeconfig=kubeconfig)


@pytest.mark.parametrize(("name", "count"), [(REPLICATED, 3), ("local", 1), (None, 5)])
def test_right_number_of_replicas_is_taken(tmp_path: Path, name: str | None, count: int) -> None:
    """A cluster that exists gets what it has, and a new one what is asked for."""
    found = None if name is None else scaled_down(name)
    with serving(found, tmp_path) as kubeconfig:
        assert f"--replica-count={count}" in charted(f"replicas={count}", kubeconfig=kubeconfig)


@pytest.mark.parametrize("pods", [1, 3, 5, 7, 13])
def test_members_change_the_number_of_pods(tmp_path: Path, pods: int) -> None:
    """Of a cluster whose members change, the founding number stays and the pods are as many as are
    asked for; that they change is not taken back."""
    founded = overlay(GROWN)["StatefulSet", "viewstamp"]
    with serving(founded, tmp_path) as kubeconfig:
        said = charted(
            *("replicas=3", "members.enabled=true", f"members.pods={pods}"), kubeconfig=kubeconfig
        )
        found = objects_of(said)["StatefulSet", "viewstamp"]
        with pytest.raises(RenderError, match=r"keep members\.enabled"):
            charted("replicas=3", kubeconfig=kubeconfig)

    (container,) = found["spec"]["template"]["spec"]["containers"]
    assert found["spec"]["replicas"] == pods
    assert {"--replica-count=3", "--join-as=$(POD_NAME).viewstamp-headless:7410"} <= set(
        container["args"]
    )


def test_a_restore_has_no_pods(tmp_path: Path) -> None:
    """While jobs restore, the set has no pods; without them it has as many as founded it."""
    values = ("replicas=3", "restore.enabled=true")
    assert charted_objects(*values)["StatefulSet", "viewstamp"]["spec"]["replicas"] == 0
    assert charted_objects(values[0])["StatefulSet", "viewstamp"]["spec"]["replicas"] == 3


def test_chart_is_tidy() -> None:
    """Helm's own check finds nothing but the missing icon."""
    said = run(tool("helm"), "lint", "--strict", "--kube-version", "1.37.0", str(CHART))

    assert "0 chart(s) failed" in said
    assert "[WARNING]" not in said
