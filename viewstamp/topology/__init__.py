"""Declarative topology: streams, topics, groups and users as a document, compared and applied.

    from viewstamp import topology

    wanted = topology.read_document("topology.yaml")
    print(await topology.plan(client, wanted))
    await topology.apply(client, wanted)

What a document does not list is left alone. `docs/topology.md` has the format and the rules.
"""

from __future__ import annotations

from viewstamp.complaints import Complaint, DocumentError
from viewstamp.topology.applying import apply, diff, export, plan
from viewstamp.topology.changes import ChangeVerb, DeclaredKind, Plan, PlannedChange, PlanRules
from viewstamp.topology.checking import PlanCheck, check
from viewstamp.topology.compare import compare
from viewstamp.topology.documents import dumped, merged, parsed, read_document
from viewstamp.topology.errors import (
    ClusterUnsettled,
    NotAtomic,
    PasswordsNeeded,
    PlanChanged,
    PlanRefused,
    TopologyError,
)
from viewstamp.topology.layout import document_schema
from viewstamp.topology.model import (
    DeclaredGroup,
    DeclaredStream,
    DeclaredTopic,
    DeclaredUser,
    PruneScope,
    StreamGrants,
    TopicGrants,
    Topology,
    UserGrants,
)
from viewstamp.topology.passwords import PasswordFile, PasswordFileError
from viewstamp.topology.sending import AppliedPlan

__all__ = [
    "read_document",
    "parsed",
    "merged",
    "dumped",
    "document_schema",
    "plan",
    "apply",
    "check",
    "compare",
    "diff",
    "export",
    "Topology",
    "DeclaredStream",
    "DeclaredTopic",
    "DeclaredGroup",
    "DeclaredUser",
    "UserGrants",
    "StreamGrants",
    "TopicGrants",
    "PruneScope",
    "Plan",
    "PlanRules",
    "PlannedChange",
    "ChangeVerb",
    "DeclaredKind",
    "AppliedPlan",
    "PlanCheck",
    "PasswordFile",
    "PasswordFileError",
    "TopologyError",
    "DocumentError",
    "Complaint",
    "PlanRefused",
    "PlanChanged",
    "NotAtomic",
    "ClusterUnsettled",
    "PasswordsNeeded",
]
