"""The pages for people: their links lead somewhere, all are found from the index, and the code knows what they show."""

from __future__ import annotations

import re
import shlex
import subprocess
from collections import Counter
from collections.abc import Iterator
from itertools import takewhile
from pathlib import Path
from typing import Any, get_args

import pytest
import yaml
from confluent_kafka import Producer
from typer.testing import CliRunner

from tailrace.config.problems import DocumentError
from tailrace.spec import Platform, load_pipelines, load_platform
from tailrace.supervisor.status import SinkState, TapState
from tailrace.surfaces.cli import app
from tailrace.testing.servers import PostgresServer
from tests.sinks.dead_letters import failed
from tools.reference.markdown import slug

ROOT = Path(__file__).parents[1]
INDEX = ROOT / "docs" / "index.md"
PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("deploy/*.md")])
FENCED = re.compile(r"^ *```(?P<language>\w*).*?\n(?P<text>.*?)^ *```$", re.DOTALL | re.MULTILINE)
METRIC = re.compile(r"tailrace_(?:source|sink|snapshot|status)_[a-z_]+")
CODE = re.compile(r"`([a-z]+\.[a-z_]+)`")
NO_CODES = {"snapshot.detached_partitions", "spark.read"} | {
    f"{outer}.{inner}"
    for outer, field in Platform.model_fields.items()
    for inner in getattr(field.annotation, "model_fields", ())
}
"""What looks like an error code: keys of documents, and code."""
HEADERS = {*failed(1).headers("topic", whole=False)}
"""What a message of a topic for dead letters may have."""
CALLS = """
```sh
tailrace run x.yaml --seconds 2 > log 2>&1 &
tailrace run x.yaml --secnods 2
tailrace runn x.yaml
tailrace verify x.yaml \\
  --table 'a.b|c'   # all of it
```
"""
LINK = re.compile(r"\]\(([^)\s]+)\)")
THEIRS = {"groups", "scrape_configs", "tokenSecret"}
"""Keys of documents that are not ours: Prometheus has these, and values of a chart."""
LOGGED = (
    "telemetry.py",
    "supervisor/transitions.py",
    "supervisor/service/service.py",
    "supervisor/runtime/process.py",
    "capture/tap.py",
)
"""What logs."""
PIPELINE: dict[str, Any] = {
    "apiVersion": "tailrace/v1",
    "kind": "Pipeline",
    "metadata": {"name": "made-up"},
    "spec": {
        "source": {
            "type": "postgres",
            "config": {"id": "shop", "dsn": "postgresql://cdc@localhost/shop", "tables": ["*"]},
        },
        "sinks": [{"type": "console", "config": {"id": "screen"}}],
    },
}
EVERY_PAGE = pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))


@EVERY_PAGE
def test_every_link_leads_somewhere(page: Path) -> None:
    assert not [link for link in links(page.read_text()) if not leads_somewhere(page, link)]


def test_every_page_is_found_from_the_readme_and_from_the_index() -> None:
    pages = {page for page in PAGES if page.is_relative_to(INDEX.parent)}
    assert INDEX in targets(ROOT / "README.md")
    assert sorted(pages - reachable(INDEX)) == []


@EVERY_PAGE
def test_every_command_exists_and_has_these_options(page: Path) -> None:
    assert not [words for words in commands(page.read_text()) if not is_accepted(words)]


@EVERY_PAGE
def test_every_document_is_valid(page: Path, tmp_path: Path) -> None:
    for text in blocks(page.read_text(), "yaml"):
        check_document(text, tmp_path / "document.yaml")


@pytest.mark.parametrize("name", ["pipeline.md", "guides/kafka.md"])
def test_every_setting_of_a_kafka_client_is_known_to_it(name: str) -> None:
    shown = client_confs([yaml.safe_load(text) for text in blocks((INDEX.parent / name).read_text(), "yaml")])
    assert any("sasl.password" in conf for conf in shown)
    for conf in shown:
        here = {key: text for key, text in conf.items() if not key.endswith(".location")}  # files of somebody else
        Producer({"bootstrap.servers": "nowhere.invalid:1", "log_level": 0, **here})


def client_confs(found: Any) -> list[dict[str, Any]]:
    """Wherever they stand in a document."""
    if isinstance(found, list):
        return [conf for each in found for conf in client_confs(each)]
    if not isinstance(found, dict):
        return []
    own = [found["client_conf"]] if "client_conf" in found else []
    return own + [conf for each in found.values() for conf in client_confs(each)]


def test_every_metric_exists() -> None:
    """In any page, code included. `…` stands for what several names begin with."""
    known = set(METRIC.findall((INDEX.parent / "reference" / "metrics.md").read_text()))
    told = {name for page in PAGES for name in METRIC.findall(page.read_text())}
    assert not told - known


def test_every_error_code_exists() -> None:
    """What stands in backticks and begins like one."""
    known = set(re.findall(CODE, (INDEX.parent / "reference" / "errors.md").read_text()))
    areas = {code.partition(".")[0] for code in known}
    told = {code for page in PAGES for code in CODE.findall(FENCED.sub("", page.read_text()))}
    assert not {code for code in told - known - NO_CODES - HEADERS - events() if code.partition(".")[0] in areas}


def events() -> set[str]:
    """What can be logged: names like error codes that are none."""
    codes = set(re.findall(CODE, (INDEX.parent / "reference" / "errors.md").read_text()))
    texts = [(ROOT / "src" / "tailrace" / name).read_text() for name in LOGGED]
    named = {name for text in texts for name in re.findall(r'"([a-z]+\.[a-z_]+)"', text)}
    return named - codes - {"tailrace.events", "metadata.name"}


def test_every_event_of_the_log_is_explained() -> None:
    section = (INDEX.parent / "guides" / "watch.md").read_text().partition("## What it logs")[2].partition("\n## ")[0]
    rows = [line.split("|")[1] for line in section.splitlines() if line.startswith("| `")]
    assert {name for row in rows for name in CODE.findall(row)} == events()


def test_every_header_of_a_dead_letter_is_explained() -> None:
    text = (INDEX.parent / "dead-letters.md").read_text()
    first_cells = re.findall(r"^\| (`dlq\..*?) \|", text, re.MULTILINE)
    assert set(re.findall(r"`(.+?)`", " ".join(first_cells))) == HEADERS


def test_every_state_is_explained() -> None:
    text = (INDEX.parent / "guides" / "watch.md").read_text()
    told = set(re.findall(r"^\| (\w+) \| (?:tap|sink)", text, re.MULTILINE))
    assert told == set(get_args(TapState)) | set(get_args(SinkState))


def test_a_server_set_up_as_the_guide_says_is_ready(tmp_path: Path) -> None:
    """Its statements are run, and then its source is looked at by `tailrace doctor`."""
    guide = (INDEX.parent / "guides" / "prepare-postgres.md").read_text()
    [source] = [yaml.safe_load(text)["source"] for text in blocks(guide, "yaml")]
    del source["config"]["tls"]  # the server has no certificate
    document = tmp_path / "pipeline.yaml"
    document.write_text(yaml.safe_dump(whole({"source": source})))
    with PostgresServer() as server:
        psql(server, "postgres", "CREATE DATABASE shop")
        psql(
            server, "shop", *(f"CREATE TABLE {name} (id int PRIMARY KEY)" for name in ("orders", "customers", "events"))
        )
        psql(server, "shop", *blocks(guide, "sql"))
        dsn = f"postgresql://tailrace:secret@127.0.0.1:{server.port}/shop"
        done = CliRunner().invoke(app, ["doctor", str(document)], env={"SHOP_DSN": dsn})
    assert done.exit_code == 0, done.output
    assert "0 warn, 0 FAIL" in done.output
    assert "tailrace_shop, yours, has every table" in done.output


def test_what_is_wrong_is_found(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("# One\n## It's `two`\n## One\n")
    there = ["page.md", "#one", "#its-two", "#one-1", "page.md#one", "https://example.com/x"]
    assert all(leads_somewhere(page, link) for link in there)
    assert not any(leads_somewhere(page, link) for link in ["gone.md", "#three", "page.md#one-2"])
    assert [is_accepted(words) for words in commands(CALLS)] == [True, False, False, True]
    with pytest.raises(DocumentError, match="brokrs"):
        check_document("- type: kafka\n  config: {id: k, brokrs: x, topic: t}\n", tmp_path / "document.yaml")


def links(text: str) -> list[str]:
    """What a page links to; code has no links."""
    return LINK.findall(re.sub(r"`[^`\n]*`", "", FENCED.sub("", text)))


def leads_somewhere(page: Path, link: str) -> bool:
    if re.match(r"[a-z]+:", link):
        return True
    path, _, anchor = link.partition("#")
    target = (page.parent / path).resolve() if path else page
    return target.exists() and (not anchor or anchor in anchors(target.read_text()))


def anchors(text: str) -> Iterator[str]:
    """Of the headings; one that stands there again gets a number."""
    seen = Counter[str]()
    for heading in re.findall(r"^#+ (.*)$", FENCED.sub("", text), re.MULTILINE):
        name = slug(heading)
        yield f"{name}-{seen[name]}" if seen[name] else name
        seen[name] += 1


def targets(page: Path) -> set[Path]:
    return {(page.parent / link.partition("#")[0]).resolve() for link in links(page.read_text())}


def reachable(start: Path) -> set[Path]:
    found, waiting = {start}, [start]
    while waiting:
        new = targets(waiting.pop()) & set(PAGES) - found
        found |= new
        waiting += new
    return found


def blocks(text: str, language: str) -> list[str]:
    return [block["text"] for block in FENCED.finditer(text) if block["language"] == language]


def commands(text: str) -> Iterator[list[str]]:
    """The calls of Tailrace in the blocks for a shell: their words, without redirections."""
    for block in blocks(text, "sh"):
        for line in re.findall(r"^tailrace .*", block.replace("\\\n", ""), re.MULTILINE):
            words = shlex.shlex(line, posix=True, punctuation_chars=True)
            words.whitespace_split = True
            yield list(takewhile(lambda word: not set(word) <= set("<>&|;"), words))[1:]


def is_accepted(words: list[str]) -> bool:
    """Whether the command line knows the command and its options. Asked for help, it reads them and does nothing."""
    return CliRunner().invoke(app, [*words, "--help"]).exit_code == 0


def psql(server: PostgresServer, database: str, *texts: str) -> None:
    command = [str(server.bin("psql")), "--quiet", "--set=ON_ERROR_STOP=1", server.dsn(database)]
    subprocess.run(command, input=";\n".join(texts), text=True, check=True)


def check_document(text: str, file: Path) -> None:
    """A document of ours, or a part of one, put into `file` to be read. `DocumentError` says what is wrong."""
    data = yaml.safe_load(text)
    if any(key in data for key in THEIRS):
        return
    file.write_text(yaml.safe_dump(whole(data)))
    environ = dict.fromkeys(re.findall(r"\$\{(\w+)", text), "postgresql://cdc@localhost/shop")
    if "spec" in whole(data):
        load_pipelines([file], environ)
    else:
        load_platform(file, environ)


def whole(data: Any) -> dict[str, Any]:
    """The document that this is a part of: keys of a pipeline's `spec`, a list of its sinks, keys of one in a lake, or
    else keys of the platform's. What is left out is made up."""
    match data:
        case {"source": _} | {"sinks": _} | {"batch": _} | {"sharding": _} | {"processors": _}:
            return {**PIPELINE, "spec": {**PIPELINE["spec"], **data}}
        case list():
            return whole({"sinks": data})
        case {"maintenance": _}:
            return whole([{"type": "delta", "config": {"id": "lake", "path": "/lake", **data}}])
        case _:
            return dict(data)
