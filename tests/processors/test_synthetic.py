"""The smallest processor keeps the promises of all."""

from __future__ import annotations

import pytest

from tailrace.contracts import BatchProcessor
from tailrace.processors.synthetic import SyntheticProcessor
from tailrace.testing.suites.processors import ProcessorSuite


class TestSynthetic(ProcessorSuite):
    @pytest.fixture
    def processor(self) -> BatchProcessor:
        return SyntheticProcessor(id="only-real", exclude_synthetic=True)
