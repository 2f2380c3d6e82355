"""What every deterministic machine is built of: tables that can be reverted, and frozen at cuts.

The coordinator's machines (sessions, replies, catalog) and those of the services use the same kit.
It has no clock, randomness or I/O, and imports nothing of the product.
"""
