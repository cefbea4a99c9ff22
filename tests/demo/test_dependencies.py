"""What the demo imports comes with the package and its extra `demo`: `make demo` installs no more."""

from __future__ import annotations

import tomllib
from importlib.metadata import distribution, packages_distributions
from pathlib import Path
from sys import stdlib_module_names

import grimp
import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOTS = (
    "tailrace.surfaces.cli",
    "tailrace.demo",
    "tailrace.capture.tap",
    "tailrace.capture.postgres",
    "tailrace.sinks.delta",
    "tailrace.sinks.file",
    "tailrace.spark",
    "tailrace.supervisor",
    "tailrace.testing.servers",
)
"""What a demo runs: the command, and what processes and the registry load by name."""


@pytest.fixture(scope="module")
def graph() -> grimp.ImportGraph:
    return grimp.build_graph("tailrace", include_external_packages=True, exclude_type_checking_imports=True)


def test_the_demo_needs_no_tool_of_the_tests(graph: grimp.ImportGraph) -> None:
    assert {root: found for root in ROOTS if (found := _lacking(graph, root))} == {}


def test_what_is_for_tests_alone_is_noticed(graph: grimp.ImportGraph) -> None:
    assert "pytest" in _lacking(graph, "tailrace.testing.suites")


def _lacking(graph: grimp.ImportGraph, root: str) -> set[str]:
    """Packages that are imported from there on, and that the demo's installation does not have."""
    reached = graph.find_upstream_modules(root, as_package=True)
    names = {name for name in reached if not name.startswith("tailrace")} - stdlib_module_names
    providers = packages_distributions()
    return {name for name in names if not _installed().intersection(map(canonicalize_name, providers.get(name, ())))}


def _installed() -> set[str]:
    """The distributions that the package and its extra `demo` bring, with all they require."""
    project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())["project"]
    waiting = [Requirement(text) for text in (*project["dependencies"], *project["optional-dependencies"]["demo"])]
    found: set[str] = set()
    while waiting:
        wanted = waiting.pop()
        found.add(canonicalize_name(wanted.name))
        for needed in map(Requirement, distribution(wanted.name).requires or ()):
            extras = (*wanted.extras, "")
            applies = needed.marker is None or any(needed.marker.evaluate({"extra": each}) for each in extras)
            if applies and canonicalize_name(needed.name) not in found:
                waiting.append(needed)
    return found
