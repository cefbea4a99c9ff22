"""What proves Tailrace, shipped so that third-party connectors can be proved the same way."""
