"""OTLP JSON lines of any producer, read into checked tables."""
