"""`python -m tailrace.testing.servers`: fetch what the servers need, so that no test waits for a download."""

from tailrace.testing.servers.kafka import fetch_kafka
from tailrace.testing.servers.postgres_binaries import MAJORS, installation

if __name__ == "__main__":
    fetch_kafka()
    for major in MAJORS:
        installation(major).program("postgres")
