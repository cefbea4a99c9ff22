"""Documents and values: what is read, what is expanded, what is refused and in which words."""

from __future__ import annotations

import pickle
from datetime import timedelta
from pathlib import Path
from typing import Annotated

import pytest
from pydantic import Field, ValidationError

from tailrace.config import (
    ByteSize,
    CloudEventsEnvelope,
    Dsn,
    Duration,
    Envelope,
    Model,
    NativeEnvelope,
    Reference,
    Script,
    Secret,
    Template,
    parse_template,
    redact,
)
from tailrace.config.check import build
from tailrace.config.document import parse_document, read_document, show_path
from tailrace.config.expand import expand
from tailrace.config.problems import DocumentError, Problem
from tailrace.config.values import show_duration, show_size


class Inner(Model):
    size: Annotated[ByteSize, Field(ge=1)] = 1024
    wait: Duration = timedelta(seconds=1)


class Outer(Model):
    """A model with one field of every kind that matters here."""

    name: str
    count: int | None = None
    ratio: float = 0.5
    on: bool = False
    parts: tuple[str, ...] = ()
    options: dict[str, str] = Field(default_factory=dict)
    topic: Template = "changes"
    key: Template | None = None
    headers: dict[str, Template] = Field(default_factory=dict)
    code: Script = ""
    dsn: Dsn | None = None
    password: Secret | None = None
    inner: Inner = Inner()
    envelope: Envelope = NativeEnvelope()


def load(text: str, **environ: str) -> Outer:
    document, problems = expand(parse_document(text, "doc.yaml"), Outer, environ)
    return build(document, Outer, problems)


def refused(text: str, **environ: str) -> list[Problem]:
    with pytest.raises(DocumentError) as caught:
        load(text, **environ)
    return caught.value.problems


def only(text: str, **environ: str) -> Problem:
    [problem] = refused(text, **environ)
    return problem


class TestYaml:
    def test_knows_the_line_of_every_key_and_item(self) -> None:
        document = parse_document("a:\n  - x: 1\n  - x: 2\n    y: 3\n")
        assert document.data == {"a": [{"x": 1}, {"x": 2, "y": 3}]}
        assert document.line(("a", 1, "y")) == 4
        assert document.line(("a", 1, "absent")) == 3

    @pytest.mark.parametrize("text", ["no", "on", "1:30", "010", "0x1f", "2024-01-31", "1_000", "nan", "<"])
    def test_text_that_yaml_1_1_would_turn_into_something_else_stays_text(self, text: str) -> None:
        assert parse_document(f"a: {text}").data == {"a": text}

    @pytest.mark.parametrize(
        ("text", "value"),
        [
            ("true", True),
            ("False", False),
            ("~", None),
            ("", None),
            ("-7", -7),
            ("1.5", 1.5),
            ("1e3", 1000.0),
        ],
    )
    def test_core_scalars(self, text: str, value: object) -> None:
        found = parse_document(f"a: {text}").data["a"]
        assert found == value
        assert type(found) is type(value)

    def test_anchors_and_merge_keys(self) -> None:
        document = parse_document("a: &x {one: 1, two: 2}\nb: *x\nc: {<<: *x, two: 3}\nd: {<<: [*x, {z: 0}]}")
        assert document.data["b"] == {"one": 1, "two": 2}
        assert document.data["c"] == {"one": 1, "two": 3}
        assert document.data["d"] == {"one": 1, "two": 2, "z": 0}

    @pytest.mark.parametrize(
        ("text", "code", "line"),
        [
            ("a: 1\nb: 2\na: 3\n", "config.duplicate_key", 3),
            ("a: 1\n---\nb: 2\n", "config.many_documents", 3),
            ("a: [1\nb: 2\n", "config.syntax", 2),
            ("a: 1\n 2: 3\n", "config.syntax", 2),
            ("a: 1\n2: 3\n", "config.syntax", 2),
            ("a: !!python/object:os.system x\n", "config.syntax", 1),
            ("a: !mine x\n", "config.syntax", 1),
            ("a: !mine {x: 1}\n", "config.syntax", 1),
            ("a: !!int x\n", "config.syntax", 1),
            ("a: " + "[" * 20_000, "config.syntax", 0),
            ("a:\n  <<: 1\n", "config.syntax", 2),
            ("a: &x\n  b: *x\n", "config.endless_alias", 1),
            ("- 1\n", "config.syntax", 0),
            ("", "config.syntax", 0),
            ("a: \x07\n", "config.syntax", 0),
        ],
    )
    def test_refuses(self, text: str, code: str, line: int) -> None:
        with pytest.raises(DocumentError) as caught:
            parse_document(text, "doc.yaml")
        [problem] = caught.value.problems
        assert (problem.code, problem.file, problem.line) == (code, "doc.yaml", line)
        assert problem.hint

    def test_refuses_aliases_that_multiply(self) -> None:
        lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x, x]"]
        lines += [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]" for n in range(1, 9)]
        with pytest.raises(DocumentError) as caught:
            parse_document("\n".join(lines))
        assert caught.value.code == "config.endless_alias"

    def test_unreadable_files(self, tmp_path: Path) -> None:
        with pytest.raises(DocumentError, match="No such file") as caught:
            read_document(tmp_path / "absent.yaml")
        assert caught.value.code == "config.unreadable"
        (tmp_path / "latin.yaml").write_bytes(b"a: \xe9\n")
        with pytest.raises(DocumentError, match="UTF-8"):
            read_document(tmp_path / "latin.yaml")

    def test_paths_read_like_code(self) -> None:
        assert show_path(("spec", "sinks", 0, "config", "topik")) == "spec.sinks[0].config.topik"


class TestExpansion:
    def test_variables_defaults_and_dollars(self) -> None:
        outer = load("name: '${A}-${B:-b}-${C:-}-$$-$x-${EMPTY:-full}'", A="1", EMPTY="")
        assert outer.name == "1-b--$-$x-full"

    def test_inside_lists_and_maps(self) -> None:
        outer = load("{name: x, parts: ['${A}', b], options: {k: '${A}'}}", A="a")
        assert (outer.parts, outer.options) == (("a", "b"), {"k": "a"})

    def test_a_variable_is_not_expanded_again(self) -> None:
        assert load("name: ${A}", A="${B} $$").name == "${B} $$"

    def test_keys_and_scripts_stay(self) -> None:
        outer = load("{name: x, options: {'${A}': v}, code: 'f(`${x.y}`) $$ ${NOPE'}")
        assert outer.options == {"${A}": "v"}
        assert outer.code == "f(`${x.y}`) $$ ${NOPE"

    def test_a_missing_variable_is_named_with_path_and_line(self) -> None:
        problem = only("name: x\nparts:\n  - a\n  - ${HOST}\n")
        assert problem.code == "config.missing_variable"
        assert "HOST" in problem.message
        assert (problem.path, problem.line) == ("parts[1]", 4)

    def test_every_missing_variable_is_reported(self) -> None:
        problems = refused("name: ${A}\ncount: ${B}\n")
        assert [(p.code, p.path) for p in problems] == [
            ("config.missing_variable", "name"),
            ("config.missing_variable", "count"),
        ]

    @pytest.mark.parametrize("text", ["${A", "${}", "${A B}", "${9}", "${source.table}"])
    def test_what_is_no_variable_is_refused(self, text: str) -> None:
        problem = only(f"name: '{text}'", A="1")
        assert (problem.code, problem.path) == ("config.bad_variable", "name")

    def test_text_takes_the_type_of_its_field(self) -> None:
        outer = load(
            "{name: '${N}', count: '${N}', ratio: '${N}', on: '${T}', inner: {size: '${S}', wait: '${W}'}}",
            N="4",
            T="true",
            S="2KiB",
            W="5s",
        )
        assert (outer.name, outer.count, outer.ratio, outer.on) == ("4", 4, 4.0, True)
        assert outer.inner == Inner(size=2048, wait=timedelta(seconds=5))

    @pytest.mark.parametrize("text", ["count: '4'", "count: 4.0", "on: 'true'", "on: 1", "ratio: '1'", "name: 4"])
    def test_elsewhere_types_are_strict(self, text: str) -> None:
        problems = refused("name: x\n" * (not text.startswith("name")) + text)
        assert [problem.code for problem in problems] == ["config.invalid_value"]

    def test_a_number_that_is_none_is_refused(self) -> None:
        assert only("{name: x, count: '${N}'}", N="four").path == "count"


class TestTemplates:
    def test_pieces(self) -> None:
        assert parse_template("a.${source.table}-${op}$${x}") == (
            "a.",
            Reference(("source", "table")),
            "-",
            Reference(("op",)),
            "${x}",
        )
        assert parse_template("") == ()
        assert parse_template("${after.doc.city}") == (Reference(("after", "doc", "city")),)

    def test_words_of_the_change_stay_and_variables_go(self) -> None:
        text = "${PREFIX}.${source.schema}.${op}.${tenant_id}.${event_id}.${key.id}.${before.x}.${NO:-d}"
        environ = {"PREFIX": "p", "op": "not this", "tenant_id": "nor this"}
        assert load(f"{{name: x, topic: '{text}'}}", **environ).topic == (
            "p.${source.schema}.${op}.${tenant_id}.${event_id}.${key.id}.${before.x}.d"
        )

    def test_in_optional_fields_and_maps(self) -> None:
        outer = load("{name: x, key: '${after.id}', headers: {h: '${op}'}}")
        assert (outer.key, outer.headers) == ("${after.id}", {"h": "${op}"})

    def test_what_a_variable_holds_is_literal(self) -> None:
        outer = load("{name: x, topic: '${A}$$${op}'}", A="${op}")
        assert parse_template(outer.topic) == ("${op}$", Reference(("op",)))

    @pytest.mark.parametrize(
        ("text", "hint"),
        [
            ("${source.tabel}", "${source.table}"),
            ("${sorce.table}", "${source.table}"),
            ("${aftr.id}", "${after."),
            ("${after.}", "${after.id}"),
            ("${source.table.x}", "${source.table}"),
            ("${after.id:-x}", "environment"),
            ("${zzz.q}", "${source.db}"),
            ("${op", "close it"),
        ],
    )
    def test_what_no_change_has_is_refused(self, text: str, hint: str) -> None:
        problem = only(f"name: x\ntopic: 'a-{text}'")
        assert (problem.code, problem.path, problem.line) == ("config.bad_template", "topic", 2)
        assert hint in problem.hint

    def test_a_bare_name_that_is_no_variable_gets_the_right_one(self) -> None:
        problem = only("{name: x, topic: '${table}'}")
        assert problem.code == "config.missing_variable"
        assert "${source.table}" in problem.hint

    def test_code_is_checked_as_well_as_documents(self) -> None:
        with pytest.raises(ValidationError, match="a change has no"):
            Outer(name="x", topic="${nope.x}")


class TestProblems:
    def test_unknown_keys_name_path_line_and_nearest_key(self) -> None:
        problem = only("name: x\ninner:\n  siez: 1\n")
        assert problem == Problem(
            "config.unknown_key", "unknown key", "did you mean `size`?", "inner.siez", "doc.yaml", 3
        )

    def test_unknown_keys_of_a_union_member(self) -> None:
        problem = only("name: x\nenvelope: {type: cloudevents, type_prefix: a, typ_prefix: b}\n")
        assert problem.path == "envelope.typ_prefix"
        assert problem.hint == "did you mean `type_prefix`?"
        assert "type_prefix" not in only("{name: x, envelope: {type: native, typ_prefix: b}}").hint

    def test_missing_keys(self) -> None:
        problem = only("name: x\nenvelope:\n  type: cloudevents\n")
        assert (problem.code, problem.path, problem.line) == (
            "config.missing_key",
            "envelope.type_prefix",
            2,
        )

    def test_unknown_member_of_a_union(self) -> None:
        problem = only("{name: x, envelope: {type: avro}}")
        assert (problem.code, problem.path) == ("config.invalid_value", "envelope")
        assert "debezium" in problem.hint

    def test_all_at_once_in_order_and_across_processes(self) -> None:
        text = "nmae: x\ncount: many\ntopic: ${nope.x}\nparts: ['${A}']\n"
        with pytest.raises(DocumentError) as caught:
            load(text)
        error = pickle.loads(pickle.dumps(caught.value))
        assert [(p.line, p.code) for p in error.problems] == [
            (1, "config.missing_key"),
            (1, "config.unknown_key"),
            (2, "config.invalid_value"),
            (3, "config.bad_template"),
            (4, "config.missing_variable"),
        ]
        assert "5 problems" in str(error)
        assert "doc.yaml:3 topic" in str(error)

    def test_values_are_never_shown(self) -> None:
        text = "{name: x, dsn: [hunter2], password: {hunter2: 1}, count: hunter2, on: 'hunter2'}"
        assert "hunter2" not in str([p for p in refused(text) if p.code != "config.unknown_key"])


class TestValues:
    @pytest.mark.parametrize(
        ("text", "seconds"), [("50ms", 0.05), ("5s", 5), ("1.5m", 90), ("2 h", 7200), ("7d", 604800), (3, 3)]
    )
    def test_durations(self, text: object, seconds: float) -> None:
        assert Inner.from_document({"wait": text}).wait == timedelta(seconds=seconds)

    @pytest.mark.parametrize(
        ("text", "size"), [("64MiB", 64 * 1024**2), ("64MB", 64_000_000), ("1.5KiB", 1536), (7, 7), ("7B", 7)]
    )
    def test_sizes(self, text: object, size: int) -> None:
        assert Inner.from_document({"size": text}).size == size

    @pytest.mark.parametrize("text", ["5", "5 parsecs", "-5s", -1, True, None, [], "s", "5S"])
    def test_refused(self, text: object) -> None:
        for key in ("wait", "size"):
            with pytest.raises(ValidationError) as caught:
                Inner.from_document({key: text})
            assert "write it like" in caught.value.errors()[0]["ctx"]["hint"]

    def test_half_a_byte_is_refused(self) -> None:
        with pytest.raises(ValidationError):
            Inner.from_document({"size": "0.5B"})

    def test_shown_as_written(self) -> None:
        assert [show_duration(timedelta(milliseconds=ms)) for ms in (0, 0.5, 50, 5000, 90000, 604_800_000)] == [
            *("0s", "500us", "50ms", "5s", "90s", "7d")
        ]
        assert [show_size(size) for size in (0, 7, 64_000_000, 64 * 1024**2)] == ["0B", "7B", "64MB", "64MiB"]
        inner = Inner(size=2048, wait=timedelta(minutes=1))
        assert inner.model_dump(mode="json") == {"size": "2KiB", "wait": "1m"}
        assert Inner.from_document(inner.model_dump(mode="json")) == inner


class TestModel:
    def test_frozen_and_picklable(self) -> None:
        outer = load("{name: x, envelope: {type: cloudevents, type_prefix: a}, dsn: 'host=h password=p'}")
        assert outer.envelope == CloudEventsEnvelope(type_prefix="a")
        assert pickle.loads(pickle.dumps(outer)) == outer
        with pytest.raises(ValidationError, match="frozen"):
            outer.name = "y"


class TestSecrets:
    @pytest.mark.parametrize(
        ("text", "shown"),
        [
            ("postgres://u:hunter2@h:5432/db", "postgres://u:***@h:5432/db"),
            ("postgres://u:hun@ter2@h/db", "postgres://u:***@h/db"),
            ("redis://:hunter2@h", "redis://:***@h"),
            ("postgres://h/db?user=u&password=hunter2&sslmode=require", None),
            ("host=h password=hunter2 user=u", "host=h password=*** user=u"),
            ("host=h password = 'hunter2 \\' hunter2' user=u", "host=h password = *** user=u"),
            ("PASSWORD=hunter2", "PASSWORD=***"),
            ("{'sasl.password': 'hunter2', 'acks': 'all'}", "{'sasl.password': ***, 'acks': 'all'}"),
            ('{"token": "hunter2"}', '{"token": ***}'),
            ("ssl.key.password=hunter2", "ssl.key.password=***"),
        ],
    )
    def test_redact(self, text: str, shown: str | None) -> None:
        assert "hunter2" not in redact(text)
        assert shown is None or redact(text) == shown

    @pytest.mark.parametrize(
        "text",
        [
            "postgres://h:5432/db",
            "password authentication failed for user u",
            "host=h user=u",
            "http://h/a?b=c",
        ],
    )
    def test_redact_leaves_the_rest(self, text: str) -> None:
        assert redact(text) == text

    def test_models_never_show_them(self) -> None:
        outer = Outer.from_document({"name": "x", "dsn": "postgres://u:hunter2@h/db", "password": "hunter2"})
        assert "hunter2" not in f"{outer!r} {outer} {outer.model_dump_json()} {outer.model_dump()}"
        assert outer.dsn is not None
        assert str(outer.dsn) == "postgres://u:***@h/db"
        assert outer.dsn.get_secret_value() == "postgres://u:hunter2@h/db"
