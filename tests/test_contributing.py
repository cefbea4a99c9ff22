"""The guide's example is real: its code is loaded, run on Spark's terms and checked by content."""

from __future__ import annotations

import pickle
import re
import sys
import types
from pathlib import Path

import pyarrow as pa

from tailrace import scaffold
from tailrace.contracts import Delivery, Span

GUIDE = Path(__file__).parents[1] / "CONTRIBUTING.md"


def test_the_sink_of_the_guide_works(tmp_path: Path) -> None:
    code = re.findall(r"```python\n(.*?)```", GUIDE.read_text(), re.DOTALL)[0]
    assert code == Path(scaffold.__file__).with_name("sink.py").read_text(), "what `tailrace new sink` writes"
    module = types.ModuleType("guide_line_sink")
    sys.modules[module.__name__] = module
    exec(compile(code, "CONTRIBUTING.md", "exec"), module.__dict__)
    sink = module.LineSink.from_document({"id": "lines", "path": str(tmp_path / "out.txt")})
    sink = pickle.loads(pickle.dumps(sink))
    delivery, span = Delivery("p", "t", "s"), Span("log", 0, 2)
    batch = pa.RecordBatch.from_pydict({"key": ['{"id":1}', '{"id":2}'], "value": ["a", "b"]})
    sink.prepare(delivery)
    written = sink.open(delivery, span, 0).write(iter([batch]))
    sink.commit(delivery, span, [written.receipt])
    assert (tmp_path / "out.txt").read_text() == '{"id":1}\ta\n{"id":2}\tb\n'
