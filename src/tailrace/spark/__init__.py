"""Run it: the log as a streaming source, one query per sink, the session and the worker daemon they need."""
