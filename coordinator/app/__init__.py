"""One coordinator process put together: configuration, composition, life cycle, leadership.

Nobody imports this package: it knows all others.
"""
