"""Tailrace: every committed change of a database, carried to every place that needs it, once and in order."""

__version__ = "0.1.0"
