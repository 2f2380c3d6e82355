"""Spark turns the traces and snapshots of the system into tables, and tables into a report.

The only package that imports pyspark. It reads files and never calls a service.

    schema      names, columns and partitions of every table, and their version
    session     the Spark session, and clear words where Java or Spark is missing
    tables      tables written in one step, read back checked
    otlp        OTLP JSON lines of any producer -> spans, quarantine, data_quality
    traces      spans -> latencies, service graph, critical paths, errors
    snapshots   snapshot directories and exports -> sizes, growth, churn
    report      tables -> one page
"""
