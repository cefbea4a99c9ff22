"""Snapshots of PostgreSQL tables in chunks, without locks and beside the stream: plan, read, and what a read saw."""
