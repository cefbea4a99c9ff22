"""The service: every use case of a server, as one object. Surfaces are thin over it.

documents.py   pipeline documents: checked, merged, shown without their secrets
plan.py        what applying one would change
wishes.py      what shall become of pipelines; reconciler.py makes it so, with taps.py and the runtimes
states.py      what state a pipeline is in, and why
"""

from tailrace.supervisor.service.service import Applied, PipelineRecord, Service

__all__ = ["Applied", "PipelineRecord", "Service"]
