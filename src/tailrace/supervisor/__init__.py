"""Keep it running: taps, queries, their states, and one object that has every use case."""

from tailrace.supervisor.run import Supervisor
from tailrace.supervisor.status import SinkStatus, Status, TableStatus, TapStatus

__all__ = ["SinkStatus", "Status", "Supervisor", "TableStatus", "TapStatus"]
