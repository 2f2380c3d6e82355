"""Importers: catalogues of other platforms, turned into streams, topics, groups and users.

Resources of Strimzi become a topology (`viewstamp.importer.strimzi`), which `viewstamp.topology`
applies.

A catalogue becomes a `ImportPlan` (pure: `viewstamp.importer.wikimedia`), the plan is compared with
what the cluster has, and what is missing is created (`viewstamp.importer.execution`). Importing the
same catalogue again creates nothing.
"""

from __future__ import annotations

from viewstamp.importer.conversion import topology_of
from viewstamp.importer.execution import import_plan
from viewstamp.importer.plan import CatalogueError, GroupKey, ImportPlan, TopicKey
from viewstamp.importer.report import Counts, Report
from viewstamp.importer.strimzi import StrimziImport, read_strimzi, strimzi_import
from viewstamp.importer.wikimedia import plan_of, read_plan
from viewstamp.topology.passwords import PasswordFile, PasswordFileError

__all__ = [
    "plan_of",
    "read_plan",
    "import_plan",
    "topology_of",
    "read_strimzi",
    "strimzi_import",
    "StrimziImport",
    "ImportPlan",
    "TopicKey",
    "GroupKey",
    "Report",
    "Counts",
    "PasswordFile",
    "PasswordFileError",
    "CatalogueError",
]
