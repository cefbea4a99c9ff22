"""Deliver it: one file or folder per sink, whose docstring says how it absorbs a repeat."""
