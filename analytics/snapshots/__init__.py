"""Snapshots as tables: what the state consists of, how it grows, and what of it is waste.

errors      reasons why a snapshot cannot be read, and the warning for a copy passed over
copies      copy directories: generations, and manifests from the first good copy
layers      one layer out of several copies, block by block
chain       a section as a chain of layers: key ranges, merged entities, what changed
columns     columns of each kind of entity, as an export has them
views       what can be read of a snapshot, and the partitions of each
source      `spark.read.format("viewstamp-snapshot")`
reading     the same with the checks and warnings in the driver
exports     exports written by `viewstamp snapshot export`
sizes       snapshot_sections, snapshot_tenants, restore_estimate
growth      growth
change      churn, amplification
garbage     garbage
latency     cut_latency
history     a generator of snapshot directories for tests and load
"""
