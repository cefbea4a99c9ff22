"""Real servers without containers: on a free loopback port, in a directory of their own, stopped by pid.

    with PostgresServer() as postgres, KafkaBroker() as kafka:
        run(postgres.dsn(), kafka.bootstrap)

As context managers they start and, at the end, stop and remove what was temporary. As objects they have
`start()`, `stop()`, `restart()` and `kill()`, all of which keep port and data. A server dies with the thread
that started it, so start it from one that lives as long as it is needed.
"""

from tailrace.machine.maven import fetch_jars
from tailrace.testing.servers.debezium import DebeziumConnect
from tailrace.testing.servers.http import HttpEndpoint
from tailrace.testing.servers.kafka import KafkaBroker
from tailrace.testing.servers.kafka_secure import SecureKafkaBroker
from tailrace.testing.servers.kinesis import KinesisServer
from tailrace.testing.servers.nats import NatsServer
from tailrace.testing.servers.opensearch import OpenSearchServer
from tailrace.testing.servers.postgres import PostgresServer
from tailrace.testing.servers.postgres_standby import PostgresStandby
from tailrace.testing.servers.redis import RedisServer
from tailrace.testing.servers.seaweed import SeaweedServer

__all__ = [
    "DebeziumConnect",
    "HttpEndpoint",
    "KafkaBroker",
    "KinesisServer",
    "NatsServer",
    "OpenSearchServer",
    "PostgresServer",
    "PostgresStandby",
    "RedisServer",
    "SeaweedServer",
    "SecureKafkaBroker",
    "fetch_jars",
]
