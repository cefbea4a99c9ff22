"""Change it: steps between the log and a sink, one file each."""
