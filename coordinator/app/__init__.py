"""Puts one coordinator process together: configuration, composition, life cycle, leadership.

This package imports all others, and none of them imports it.
"""
