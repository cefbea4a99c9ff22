"""What Tailrace needs of the machine it runs on: Java, jars, a cache, durable files, processes that end together."""
