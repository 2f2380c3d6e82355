"""The chart is what kustomize makes, by the real programs; and it refuses what cannot be."""

from __future__ import annotations

import random
from typing import Any

import pytest

from tests.deploy.pod import ROOT
from tests.deploy.tools import CHART, charted, charted_objects, tool, values_of
from tools.manifests.__main__ import differences, files
from tools.manifests.features import FEATURES, Features, closed, variants
from tools.manifests.kustomization import Objects, RenderError, run, variant

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
    template: Any = objects["StatefulSet", "viewstamp"]["spec"]["template"]
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
        (["archive.enabled=true", "archive.schedule=1 2 * * *"], 'schedule: "1 2 * * *"'),
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
        (["peerTls.enabled=true"], "peerTls.enabled needs replicas: 3 or 5"),
        (["certManager.enabled=true"], "certManager.enabled needs tls.enabled"),
        (["prometheusOperator.enabled=true"], "prometheusOperator.enabled needs metrics.enabled"),
    ],
    ids=lambda value: value[0] if isinstance(value, list) else "",
)
def test_values_that_do_not_fit_are_refused(values: list[str], complaint: str) -> None:
    """A misspelt name, a wrong type, and a feature without what it needs end the rendering."""
    with pytest.raises(RenderError, match=complaint):
        charted(*values)


def test_chart_is_tidy() -> None:
    """Helm's own check finds nothing but the missing icon."""
    said = run(tool("helm"), "lint", "--strict", "--kube-version", "1.37.0", str(CHART))

    assert "0 chart(s) failed" in said
    assert "[WARNING]" not in said
