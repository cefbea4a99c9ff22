"""Conformance suites: a connector's test is a subclass that says how to make it and how to look behind it."""
