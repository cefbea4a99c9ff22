"""What capture tests share: databases of their own, sources on them, and how to look at what was captured."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))
