"""What happens to the database that Tailrace and Debezium both read: every type, every operation, tables of every kind.

Statements with their parameters; each is a transaction of its own, unless it is many."""

from __future__ import annotations

from collections.abc import Iterator

from tests.capture.postgres.values import Case, changes, creation

Statement = tuple[str, list[str] | None]

TABLES = (
    """CREATE TABLE required (id int PRIMARY KEY, b boolean NOT NULL, i2 smallint NOT NULL, i8 bigint NOT NULL,
       f4 real NOT NULL, f8 double precision NOT NULL, n numeric NOT NULL, n2 numeric(10, 2) NOT NULL, m money NOT NULL,
       t text NOT NULL, vc varchar(10) NOT NULL, ch char(3) NOT NULL, by bytea NOT NULL, bi bit(1) NOT NULL,
       bn bit(9) NOT NULL, vb varbit(5) NOT NULL, d date NOT NULL, ti time NOT NULL, t3 time(3) NOT NULL,
       tz timetz NOT NULL, ts timestamp NOT NULL, ts3 timestamp(3) NOT NULL, tstz timestamptz NOT NULL,
       iv interval NOT NULL, j json NOT NULL, jb jsonb NOT NULL, u uuid NOT NULL, e mood NOT NULL, ip inet NOT NULL,
       p point NOT NULL, r int4range NOT NULL, ai int[] NOT NULL, at text[] NOT NULL, an numeric(5, 1)[] NOT NULL)""",
    """CREATE TABLE defaults (id serial PRIMARY KEY, t text DEFAULT 'it''s', tn text NOT NULL DEFAULT 'new',
       i int DEFAULT 7, neg int NOT NULL DEFAULT -7, big bigint DEFAULT 12345678901,
       n numeric(10, 2) NOT NULL DEFAULT 1.5, v numeric DEFAULT 2.25, b boolean NOT NULL DEFAULT true,
       f float8 DEFAULT 0.5, d date DEFAULT '2024-02-29', now timestamptz NOT NULL DEFAULT now(),
       maybe timestamptz DEFAULT now(), at timestamp DEFAULT '2024-02-29 12:00',
       ti time DEFAULT '12:34:56', u uuid DEFAULT gen_random_uuid(),
       uu uuid NOT NULL DEFAULT gen_random_uuid(), j jsonb NOT NULL DEFAULT '{"a": 1}',
       e mood NOT NULL DEFAULT 'sad', by bytea DEFAULT '\\x00ff', a int[] DEFAULT '{}',
       at3 text[] NOT NULL DEFAULT ARRAY['x'], nothing text DEFAULT NULL,
       vc varchar(5) DEFAULT 'abc', up text DEFAULT upper('x'), ch char(3) DEFAULT 'ab', f4 real DEFAULT 1.5,
       t3 time(3) DEFAULT '01:02:03.5', ts0 timestamp(0) DEFAULT CURRENT_TIMESTAMP,
       z3 timestamptz(3) DEFAULT '2024-02-29 12:00:00.5+02',
       b1 bit(1) DEFAULT B'1', b5 bit(5) DEFAULT B'10101', m money DEFAULT 1.5, ip inet DEFAULT '10.0.0.1',
       s smallint DEFAULT (1 + 2), x name DEFAULT 'n', who text DEFAULT CURRENT_USER, o oid DEFAULT 5,
       tz timetz DEFAULT '01:02:03+00', js json DEFAULT '[1, "x"]', un int DEFAULT NULL::int, pr price DEFAULT 1.5,
       iv interval DEFAULT '1 day', ident bigint GENERATED ALWAYS AS IDENTITY,
       twice int GENERATED ALWAYS AS (i * 2) STORED)""",
    "CREATE TABLE two_keys (b int, a numeric(6, 2), at timestamptz, v text, PRIMARY KEY (b, a, at))",
    "CREATE TABLE keyless (a int, v text)",
    "CREATE TABLE keyless_full (a int, v text)",
    "ALTER TABLE keyless_full REPLICA IDENTITY FULL",
    "CREATE TABLE by_index (id int PRIMARY KEY, code text NOT NULL, v text)",
    "CREATE UNIQUE INDEX by_code ON by_index (code)",
    "ALTER TABLE by_index REPLICA IDENTITY USING INDEX by_code",
    "CREATE TABLE toast (id int PRIMARY KEY, n int, t text, by bytea, j jsonb, a text[], ai int[], req text NOT NULL)",
    "ALTER TABLE toast ALTER t SET STORAGE EXTERNAL, ALTER by SET STORAGE EXTERNAL, ALTER j SET STORAGE EXTERNAL, "
    "ALTER a SET STORAGE EXTERNAL, ALTER ai SET STORAGE EXTERNAL, ALTER req SET STORAGE EXTERNAL",
    "CREATE TABLE toast_full (LIKE toast INCLUDING ALL)",
    "ALTER TABLE toast_full REPLICA IDENTITY FULL",
    "CREATE TABLE emptied (id int PRIMARY KEY, v text)",
    "CREATE TABLE emptied_too (id int PRIMARY KEY REFERENCES emptied (id))",
    'CREATE TABLE "Odd näme" (id int PRIMARY KEY, "a ""b""" text, "dötted.name" int)',
    "CREATE SCHEMA other",
    "CREATE TABLE other.things (id bigint PRIMARY KEY, m mood, many mood[])",
    "CREATE TABLE parted (id int, at date, v text, PRIMARY KEY (id, at)) PARTITION BY RANGE (at)",
    "CREATE TABLE parted_old PARTITION OF parted FOR VALUES FROM (MINVALUE) TO ('2024-01-01')",
    "CREATE TABLE parted_new PARTITION OF parted FOR VALUES FROM ('2024-01-01') TO (MAXVALUE)",
    "CREATE TABLE evolving (id int PRIMARY KEY, v text)",
    "CREATE TABLE odd_types (id int PRIMARY KEY, iv int2vector, ov oidvector, many mood[], docs jsonb[])",
    "CREATE TABLE finish (id int PRIMARY KEY)",
)
LONG = "(SELECT string_agg(md5(n::text), '') FROM generate_series(1, 300) n)"
_TOAST = f"1, 1, {LONG}, {LONG}::bytea, to_jsonb({LONG}), ARRAY[{LONG}], ARRAY(SELECT generate_series(1, 3000)), {LONG}"
REQUIRED = """INSERT INTO required VALUES (1, true, 1, 2, 1.5, 2.5, 3.10, 4.25, 5.5, 't', 'vc', 'ch', 'by', B'1',
 B'101010101', B'101', '2024-02-29', '12:34:56.789', '12:34:56.789', '12:00:01+02', '2024-02-29 12:34:56.789123',
 '2024-02-29 12:34:56.789', '2024-02-29 12:34:56.789123+01', '1 mon 2 days', '{"a":1}', '[1]',
 'a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11', 'sad', '10.0.0.1', '(1,2)', '[1,3)', '{1}', '{a}', '{1.5}')"""

CHANGES = (
    REQUIRED,
    "UPDATE required SET b = false, n2 = -4.25",
    "UPDATE required SET id = 2",
    "DELETE FROM required",
    "INSERT INTO defaults DEFAULT VALUES",
    "INSERT INTO defaults (t, i, big, v, f, d, maybe, at, ti, u, by, a, vc, up, iv, ch, f4, t3, ts0, z3, b1, b5, m, "
    "ip, s, x, who, o, tz, js, pr) VALUES "
    f"({', '.join(['NULL'] * 31)})",
    "UPDATE defaults SET tn = 'old'",
    "DELETE FROM defaults WHERE id = 1",
    "INSERT INTO two_keys VALUES (1, 2.5, '2024-02-29 12:00+00', 'x')",
    "UPDATE two_keys SET v = NULL",
    "UPDATE two_keys SET a = 3, v = 'moved'",
    "DELETE FROM two_keys",
    "INSERT INTO keyless VALUES (1, 'x'), (1, 'x'), (NULL, NULL)",
    "INSERT INTO keyless_full VALUES (1, 'x'), (2, NULL)",
    "UPDATE keyless_full SET v = 'y'",
    "DELETE FROM keyless_full WHERE a = 1",
    "INSERT INTO by_index VALUES (1, 'one', 'x')",
    "UPDATE by_index SET v = 'y'",
    "UPDATE by_index SET code = 'two'",
    "UPDATE by_index SET id = 2",
    "DELETE FROM by_index",
    *(
        statement.format(table)
        for table in ("toast", "toast_full")
        for statement in (
            f"INSERT INTO {{}} VALUES ({_TOAST})",
            "UPDATE {} SET n = 2",
            "UPDATE {} SET t = 'short', j = NULL",
            "UPDATE {} SET id = 2",
            "DELETE FROM {}",
        )
    ),
    "INSERT INTO emptied VALUES (1, 'x'), (2, 'y')",
    "INSERT INTO emptied_too VALUES (1)",
    "TRUNCATE emptied_too",
    "TRUNCATE emptied RESTART IDENTITY CASCADE",
    "INSERT INTO emptied VALUES (1, 'again')",
    """INSERT INTO "Odd näme" VALUES (1, 'x', 2)""",
    """UPDATE "Odd näme" SET "dötted.name" = 3""",
    """DELETE FROM "Odd näme" """,
    "INSERT INTO other.things VALUES (1, 'sad', '{sad,\"\"}'), (2, NULL, NULL)",
    "INSERT INTO parted VALUES (1, '2023-05-05', 'old'), (2, '2024-05-05', 'new')",
    "UPDATE parted SET v = 'changed' WHERE id = 1",
    "UPDATE parted SET at = '2024-06-06' WHERE id = 1",
    "DELETE FROM parted WHERE id = 2",
    "INSERT INTO evolving VALUES (1, 'a'), (2, 'b')",
    "ALTER TABLE evolving ADD COLUMN more int NOT NULL DEFAULT 5",
    "UPDATE evolving SET v = 'c' WHERE id = 1",
    "ALTER TABLE evolving RENAME COLUMN v TO w",
    "INSERT INTO evolving VALUES (3, 'd', 6)",
    "ALTER TABLE evolving ALTER COLUMN more TYPE numeric(8, 3)",
    "UPDATE evolving SET more = 1.5 WHERE id = 3",
    "ALTER TABLE evolving DROP COLUMN more",
    "DELETE FROM evolving WHERE id = 3",
    "INSERT INTO odd_types VALUES (1, '1 2', '1 2', '{sad}', ARRAY['{}'::jsonb])",
    "INSERT INTO odd_types VALUES (2, '', '', '{}', '{}')",
    "BEGIN; INSERT INTO evolving VALUES (10, 'x'); UPDATE evolving SET w = 'y' WHERE id = 10; "
    "DELETE FROM evolving WHERE id = 10; INSERT INTO other.things VALUES (10, 'sad', NULL); COMMIT",
    "BEGIN; INSERT INTO evolving VALUES (11, 'gone'); ROLLBACK",
    "SELECT pg_logical_emit_message(true, 'audit', '{\"who\": \"me\"}')",
    "SELECT pg_logical_emit_message(false, 'audit', '[1,2]')",
)


def before(major: int) -> list[str]:
    return [*creation(major, _stops_debezium), "DROP DOMAIN temper", *TABLES]


def meanwhile(major: int) -> Iterator[Statement]:
    """Ends with a row of `finish`."""
    yield from changes(major, _stops_debezium)
    yield from ((statement, None) for statement in CHANGES)
    yield "INSERT INTO finish VALUES (1)", None


def _stops_debezium(case: Case) -> bool:
    """With a domain over an enum in the database it does not start; a number with so many zeros takes it hours; it ends
    at the longest interval, and at time zones with seconds."""
    return (case.type, case.text) in _STOPPING or case.type == "temper"


_STOPPING = {
    ("numeric", "1e131071"),
    ("interval", "2147483647 days 2562047788:00:54.775807"),
    ("timetz", "00:00:00+15:59:59"),
    ("timetz", "24:00:00-15:59:59"),
}
