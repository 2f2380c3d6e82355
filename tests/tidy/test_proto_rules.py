"""Each rule about protos, the stub drift check and buf are shown a planted violation.

A small API that follows every rule is written to a temporary directory, together with the
repository's real shared protos; each test breaks one thing in it.
"""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.test_tidy import buf_lint
from tests.tidy import proto_rules
from tests.tidy.tree import ROOT
from tools import generate

SHARED = ("viewstamp/api/common/v1/common.proto", "viewstamp/api/routing/v1/routing.proto")
PLANT = "viewstamp/api/plant/v1/plant.proto"

GOOD = """// A garden.
syntax = "proto3";

package viewstamp.api.plant.v1;

import "viewstamp/api/common/v1/common.proto";
import "viewstamp/api/routing/v1/routing.proto";

// Plants.
service PlantService {
  // Puts one plant down.
  rpc SetPlant(SetPlantRequest) returns (SetPlantResponse) {
    option (viewstamp.api.routing.v1.command) = {code: 901};
  }
  // Looks at one plant.
  rpc GetPlant(GetPlantRequest) returns (GetPlantResponse) {
    option (viewstamp.api.routing.v1.query) = {code: 951};
  }
  // Looks at all plants.
  rpc ListPlants(ListPlantsRequest) returns (ListPlantsResponse) {
    option (viewstamp.api.routing.v1.query) = {code: 952};
  }
}

// Where.
message SetPlantRequest {
  viewstamp.api.common.v1.Identifier stream = 1;
  uint64 expected_revision = 14;
  bool validate_only = 15;
}

// Done.
message SetPlantResponse {
  viewstamp.api.common.v1.ResponseHeader header = 1;
}

// Which.
message GetPlantRequest {
  uint64 id = 1;
}

// All.
message ListPlantsRequest {
  uint32 page_size = 3;
  string page_token = 4;
}

// Those on a page.
message ListPlantsResponse {
  viewstamp.api.common.v1.ResponseHeader header = 1;
}

// What is seen.
message GetPlantResponse {
  viewstamp.api.common.v1.ResponseHeader header = 1;
  // The colour of a leaf.
  enum Colour {
    COLOUR_UNSPECIFIED = 0;
  }
  Colour colour = 2;
}
"""

BREAKS = {
    "no route": ("{\n    option (viewstamp.api.routing.v1.query) = {code: 951};\n  }", ";"),
    "two routes": (
        "{code: 951};",
        "{code: 951};\noption (viewstamp.api.routing.v1.command).code = 902;",
    ),
    "same code": ("code: 951", "code: 901"),
    "no code": ("{code: 951}", "{public: true}"),
    "shared number": ("expected_revision = 14", "expected_revision = 13"),
    "no dry run": ("bool validate_only = 15;", "bool is_tried = 15;"),
    "no pages": ("string page_token = 4;", "string after = 4;"),
    "no header": (
        "message SetPlantResponse {\n  viewstamp.api.common.v1.ResponseHeader header",
        "message SetPlantResponse {\n  uint64 header",
    ),
    "map": ("Colour colour = 2;", "map<string, uint64> leaves = 2;"),
    "service comment": ("// Plants.\n", ""),
    "method comment": ("// Looks at one plant.\n", ""),
    "message comment": ("// Which.\n", ""),
    "enum comment": ("// The colour of a leaf.\n", ""),
    "buf": ("COLOUR_UNSPECIFIED", "GREEN"),
}


def plant(directory: Path, broken: str | None = None) -> Path:
    """Write the small API, broken as named, and return the folder of its protos."""
    protos = directory / "protos"
    for name in SHARED:
        (protos / name).parent.mkdir(parents=True)
        shutil.copyfile(ROOT / "protos" / name, protos / name)
    text = GOOD
    if broken is not None:
        old, new = BREAKS[broken]
        assert text.count(old) == 1
        text = text.replace(old, new)
    (protos / PLANT).parent.mkdir(parents=True)
    (protos / PLANT).write_text(text)
    return protos


def complaints(protos: Path) -> list[str]:
    """Return what all descriptor rules say of the protos."""
    files = generate.descriptor_set(protos)
    methods = proto_rules.methods(files)
    lines = proto_rules.unique_codes(methods)
    for method in methods:
        lines += proto_rules.one_route(method, {})
        lines += proto_rules.shared_field_numbers(method)
        lines += proto_rules.dry_run(method, {})
        lines += proto_rules.paged_list(method, {})
        lines += proto_rules.response_header(method)
    return lines + proto_rules.map_fields(files) + proto_rules.comments(files)


def test_good_api_passes(tmp_path: Path) -> None:
    """An API that follows the rules draws no complaint."""
    assert complaints(plant(tmp_path)) == []


@pytest.mark.parametrize(
    ("broken", "complaint"),
    [
        ("no route", "GetPlant: has 0 of the options"),
        ("two routes", "GetPlant: has 2 of the options"),
        ("same code", "GetPlant: code 901 is already viewstamp.api.plant.v1.PlantService.SetPlant"),
        ("no code", "GetPlant: has no code"),
        ("shared number", "SetPlantRequest.expected_revision: has number 13, 14 everywhere"),
        ("no dry run", "SetPlant: cannot be tried"),
        ("no pages", "ListPlants: has no pages"),
        ("no header", "SetPlantResponse: field 1 must be"),
        ("map", "map field"),
        ("service comment", "PlantService has no comment"),
        ("method comment", "PlantService.GetPlant has no comment"),
        ("message comment", "GetPlantRequest has no comment"),
        ("enum comment", "Colour has no comment"),
    ],
)
def test_rule_sees_broken_api(tmp_path: Path, broken: str, complaint: str) -> None:
    """Each break of the good API gives exactly the complaint about it."""
    (line,) = complaints(plant(tmp_path, broken))
    assert complaint in line


def test_stale_listing_is_seen(tmp_path: Path) -> None:
    """A method listed as unrouted that has a route is a complaint."""
    method = proto_rules.methods(generate.descriptor_set(plant(tmp_path)))[0]
    assert proto_rules.one_route(method, {method.name: "reason"}) != []
    methods = proto_rules.methods(generate.descriptor_set(tmp_path / "protos"))
    listed = {each.name: "reason" for each in methods}
    assert sum(len(proto_rules.dry_run(each, listed)) for each in methods) == 1
    assert sum(len(proto_rules.paged_list(each, listed)) for each in methods) == 1


def test_drift_is_seen(tmp_path: Path) -> None:
    """A changed, a missing and an additional stub are each reported, and rewriting repairs all."""
    expected = generate.render(plant(tmp_path))
    generate.write(expected, tmp_path)
    assert generate.drift(expected, tmp_path) == []

    folder = tmp_path / PLANT.removesuffix("/plant.proto")
    (folder / "plant_pb2.py").write_text("edited")
    (folder / "plant_pb2_grpc.py").unlink()
    (folder / "extra_pb2.py").write_text("")
    causes = [line.partition(": ")[2] for line in generate.drift(expected, tmp_path)]
    assert causes == ["not generated from any proto", "differs from its proto", "missing"]

    generate.write(expected, tmp_path)
    assert generate.drift(expected, tmp_path) == []


def test_stubs_have_service_code_only_where_due(tmp_path: Path) -> None:
    """Service stubs and their types are generated for files that have services, and no others."""
    names = {path.name for path in generate.render(plant(tmp_path))}
    assert {"plant_pb2_grpc.py", "plant_pb2_grpc.pyi", "common_pb2.pyi", "__init__.py"} <= names
    assert "common_pb2_grpc.py" not in names


def test_refused_protos_are_an_error(tmp_path: Path) -> None:
    """Protos that do not compile raise the compiler's own words."""
    protos = plant(tmp_path)
    (protos / PLANT).write_text("syntax = nonsense")
    with pytest.raises(generate.ProtocError, match=r"plant\.proto"):
        generate.render(protos)


def test_buf_sees_broken_api(tmp_path: Path) -> None:
    """buf passes the good API and complains of an enum value without its prefix."""
    shutil.copyfile(ROOT / "buf.yaml", tmp_path / "buf.yaml")
    protos = plant(tmp_path)
    assert buf_lint(tmp_path) == []
    old, new = BREAKS["buf"]
    (protos / PLANT).write_text(GOOD.replace(old, new))
    assert any("GREEN" in line for line in buf_lint(tmp_path))
