"""The committed renderings are of these sources, and trees of variants say where they differ."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

from tests.deploy.pod import ROOT
from tools.manifests.__main__ import SOURCES, SUMS, differences, present, sums, write
from tools.manifests.features import COMPONENTS, FEATURES, Features, closed, components, variants
from tools.manifests.merging import MergeError, merged
from tools.manifests.templates import Expression, Lines, template_of

DEPLOY = ROOT / "deploy"
NOTHING, TLS, METRICS = frozenset[str](), frozenset({"tls"}), frozenset({"metrics"})
BOTH = TLS | METRICS


def test_renderings_are_of_these_sources() -> None:
    """Whoever changed a manifest has rendered it again: run `make manifests`."""
    assert (DEPLOY / SUMS).read_text() == sums(DEPLOY)


def test_changed_source_is_seen(tmp_path: Path) -> None:
    """A changed, a new and a removed file change the list of sources."""
    for name in SOURCES:
        shutil.copytree(DEPLOY / name, tmp_path / name)
    before = sums(tmp_path)
    path = tmp_path / "base" / "service.yaml"
    texts = {sums(tmp_path)}
    for change in (lambda: path.write_text("other"), path.unlink, (tmp_path / "base/new").touch):
        change()
        texts.add(sums(tmp_path))

    assert before == sums(DEPLOY)
    assert len(texts) == 4


def test_differing_files_are_named(tmp_path: Path) -> None:
    """A file that differs, one that is missing, and one that nothing makes are each named."""
    made = {Path("rendered", "base.yaml"): "a", Path("chart", "values.yaml"): "b"}
    write(tmp_path, made)
    assert differences(tmp_path, made) == []

    (tmp_path / "rendered" / "base.yaml").write_text("other")
    (tmp_path / "chart" / "values.yaml").unlink()
    (tmp_path / "rendered" / "left.yaml").touch()

    assert sorted(differences(tmp_path, made)) == [
        "chart/values.yaml: is missing",
        "rendered/base.yaml: differs",
        "rendered/left.yaml: nothing makes it",
    ]
    write(tmp_path, made)
    assert present(tmp_path) == made.keys()


def test_features_and_components_belong_together() -> None:
    """Every component is made by features, but for what all have or only small overlays, and every
    feature makes one."""
    there = {path.name for path in (DEPLOY / "components").iterdir()} - {"labels", "small"}

    assert COMPONENTS.keys() == there
    assert {name for needed in COMPONENTS.values() for name in needed} == FEATURES.keys()
    assert components(closed(["certManagerPeers"])) == [
        "replicas",
        "peer-tls",
        "cert-manager-peers",
    ]
    assert all(chosen == closed(chosen) for chosen in variants())


@pytest.mark.parametrize(
    ("documents", "text"),
    [
        ({NOTHING: {"a": 1}, TLS: {"a": 1}}, "a: 1\n"),
        (
            {NOTHING: {"a": 1}, TLS: {"a": 1, "b": {"c": []}}},
            "a: 1\n{{- if .Values.tls.enabled }}\nb:\n  c: []\n{{- end }}\n",
        ),
        (
            {NOTHING: {"a": "x"}, TLS: {"a": "z"}, BOTH: {"a": "z"}, METRICS: {"a": "x"}},
            "{{- if not .Values.tls.enabled }}\na: x\n"
            "{{- else if .Values.tls.enabled }}\na: z\n{{- end }}\n",
        ),
        (
            {
                NOTHING: {"a": ["x"]},
                TLS: {"a": ["x"]},
                METRICS: {"a": ["x"]},
                BOTH: {"a": ["x", 1]},
            },
            "a:\n  - x\n{{- if and .Values.tls.enabled .Values.metrics.enabled }}\n  - 1\n"
            "{{- end }}\n",
        ),
        (
            {NOTHING: {"a": [{"name": "it", "b": 1}]}, TLS: {"a": [{"name": "it", "b": 2}]}},
            "a:\n  - name: it\n{{- if not .Values.tls.enabled }}\n    b: 1\n"
            "{{- else if .Values.tls.enabled }}\n    b: 2\n{{- end }}\n",
        ),
        ({NOTHING: {"a": "{{ x }}"}}, 'a: "{{ `{{` }} x {{ `}}` }}"\n'),
        ({NOTHING: {"a": "one\ntwo\n", "b": "yes"}}, 'a: |\n  one\n  two\nb: "yes"\n'),
        (
            {NOTHING: {"a": Expression("{{ .x }}"), "b": Lines("{{- if .y }}\nc: 1\n{{- end }}")}},
            "a: {{ .x }}\n{{- if .y }}\nc: 1\n{{- end }}\n",
        ),
    ],
)
def test_variants_make_one_template(documents: dict[Features, Any], text: str) -> None:
    """What is always there stands alone, all else under the condition that tells the variants."""
    assert template_of(merged(documents)) == text


@pytest.mark.parametrize(
    ("documents", "complaint"),
    [
        ({NOTHING: {"a": ["x", "y"]}, TLS: {"a": ["y", "x"]}}, "in one order here"),
        ({NOTHING: {"a": ["x", "x"]}, TLS: {"a": []}}, "look the same"),
        (
            {NOTHING: {"a": 1}, TLS: {}, METRICS: {}, BOTH: {"a": 1}},
            "no condition tells",
        ),
    ],
)
def test_what_a_chart_cannot_say_is_refused(documents: dict[Features, Any], complaint: str) -> None:
    """Another order, equal items, and differences that need more than two features are errors."""
    with pytest.raises(MergeError, match=complaint):
        merged(documents)
