"""Read what changed: sources and the tap that copies them to the log. Nothing here knows Spark."""
