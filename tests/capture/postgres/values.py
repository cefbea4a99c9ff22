"""Every built-in type and its boundaries: what is written into PostgreSQL, and the JSON text it must become.

One table for every path a value can take. A case is (type, text given to the type's input, expected JSON text); each
is also asserted as an element of an array with a null, so an array of every type is covered by its own line here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple


class Case(NamedTuple):
    type: str
    text: str
    json: str
    needs: str = ""
    """What the server must have been built with: an extension's name, or xml."""
    since: int = 15
    """The first major version that knows the value."""
    arrays: bool = True
    """Whether an array of it has the same JSON as its element."""


DEFINITIONS = (
    """CREATE TYPE mood AS ENUM ('sad', 'NULL', 'très "gai", {\\oui}', '')""",
    "CREATE DOMAIN count AS int CHECK (VALUE >= 0)",
    "CREATE DOMAIN price AS numeric(10, 2)",
    "CREATE DOMAIN discount AS price",
    "CREATE DOMAIN tags AS text[]",
    "CREATE DOMAIN labels AS tags",
    "CREATE DOMAIN document AS jsonb",
    "CREATE DOMAIN digest AS bytea",
    "CREATE DOMAIN moment AS timestamptz(3)",
    "CREATE DOMAIN temper AS mood",
    "CREATE DOMAIN area AS box",
    "CREATE TYPE item AS (id int, name text, at timestamptz, tags text[], data bytea)",
    "CREATE TYPE nested AS (it item, price price)",
    "CREATE DOMAIN thing AS item",
    "CREATE TYPE words AS RANGE (subtype = text)",
    'CREATE TABLE "Mixed ""Täble" ()',
)
"""Types and names the cases use."""

NUMBERS = [
    Case("int2", "-32768", "-32768"),
    Case("int2", "32767", "32767"),
    Case("int4", "-2147483648", "-2147483648"),
    Case("int4", "2147483647", "2147483647"),
    Case("int8", "-9223372036854775808", "-9223372036854775808"),
    Case("int8", "9223372036854775807", "9223372036854775807"),
    Case("int8", "0", "0"),
    Case("bool", "true", "true"),
    Case("bool", "off", "false"),
    Case("numeric", "NaN", '"NaN"'),
    Case("numeric", "Infinity", '"Infinity"'),
    Case("numeric", "-Infinity", '"-Infinity"'),
    Case("numeric", "-0", '"0"'),
    Case("numeric", "1.10", '"1.10"'),
    Case("numeric", "1e-20", '"0.00000000000000000001"'),
    Case("numeric", "12345678901234567890.098765432109876543210", '"12345678901234567890.098765432109876543210"'),
    Case("numeric", "-" + "9876543210" * 100, '"-' + "9876543210" * 100 + '"'),
    Case("numeric(1000, 500)", "7" * 500 + "." + "3" * 500, '"' + "7" * 500 + "." + "3" * 500 + '"'),
    Case("numeric", "1e131071", '"1' + "0" * 131071 + '"'),
    Case("numeric(10, 2)", "1.005", '"1.01"'),
    Case("numeric(3, -2)", "12345", '"12300"'),
    Case("numeric(2, 4)", "-0.0012", '"-0.0012"'),
    Case("money", "0", '"$0.00"'),
    Case("money", "-92233720368547758.08", '"-$92,233,720,368,547,758.08"'),
    Case("money", "92233720368547758.07", '"$92,233,720,368,547,758.07"'),
]

FLOATS = [
    Case("float4", "NaN", '"NaN"'),
    Case("float4", "Infinity", '"Infinity"'),
    Case("float4", "-Infinity", '"-Infinity"'),
    Case("float4", "0", "0"),
    Case("float4", "-0", "-0"),
    Case("float4", "0.1", "0.1"),
    Case("float4", "16777217", "1.6777216e+07"),
    Case("float4", "3.4028235e38", "3.4028235e+38"),
    Case("float4", "1.1754944e-38", "1.1754944e-38"),
    Case("float4", "1e-45", "1e-45"),
    Case("float8", "NaN", '"NaN"'),
    Case("float8", "Infinity", '"Infinity"'),
    Case("float8", "-Infinity", '"-Infinity"'),
    Case("float8", "-0", "-0"),
    Case("float8", "0.1", "0.1"),
    Case("float8", "-123456.789", "-123456.789"),
    Case("float8", "9007199254740993", "9.007199254740992e+15"),
    Case("float8", "1e15", "1e+15"),
    Case("float8", "1.7976931348623157e308", "1.7976931348623157e+308"),
    Case("float8", "2.2250738585072014e-308", "2.2250738585072014e-308"),
    Case("float8", "5e-324", "5e-324"),
]

TEXTS = [
    Case("text", "", '""'),
    Case("text", " ", '" "'),
    Case("text", "NULL", '"NULL"'),
    Case("text", "null", '"null"'),
    Case("text", "{a,b}", '"{a,b}"'),
    Case("text", 'quote " backslash \\ slash /', '"quote \\" backslash \\\\ slash /"'),
    Case("text", "\b\t\n\v\f\r\x01\x0e\x1f\x7f", '"\\b\\t\\n\\u000b\\f\\r\\u0001\\u000e\\u001f\x7f"'),
    Case("text", "größe Ключ 鍵 😀 \u2028\u0085\ufeff\U0010ffff", '"größe Ключ 鍵 😀 \u2028\u0085\ufeff\U0010ffff"'),
    Case("text", "\\N", '"\\\\N"'),
    Case("text", "\\.", '"\\\\."'),
    Case("text", "\\x41\\101", '"\\\\x41\\\\101"'),
    Case("text", 'x"\n' * 2000, '"' + 'x\\"\\n' * 2000 + '"'),
    Case("varchar", "tab\there", '"tab\\there"'),
    Case("varchar(3)", "äöü", '"äöü"'),
    Case("bpchar", "ab ", '"ab "'),
    Case("char(5)", "ab", '"ab   "'),
    Case("char(2)", "", '"  "'),
    Case('"char"', "", '""'),
    Case('"char"', "a", '"a"'),
    Case('"char"', '"', '"\\""'),
    Case('"char"', "\\377", '"\\\\377"'),
    Case("name", "naïve", '"naïve"'),
    Case("name", "n" * 70, '"' + "n" * 63 + '"'),
    Case("refcursor", "unnamed 1", '"unnamed 1"'),
    Case("uuid", "{A0EEBC99-9C0B4EF8-BB6D6BB9-BD380A11}", '"a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11"'),
    Case("uuid", "00000000-0000-0000-0000-000000000000", '"00000000-0000-0000-0000-000000000000"'),
]

BYTES = [
    Case("bytea", "\\x", '""'),
    Case("bytea", "\\x00", '"AA=="'),
    Case("bytea", "\\x00ff", '"AP8="'),
    Case("bytea", "\\xfbeffe", '"++/+"'),
    Case("bytea", "\\xdeadBEEF", '"3q2+7w=="'),
    Case("bytea", "abc\\000\\\\", '"YWJjAFw="'),
    Case("bytea", "\\x" + "ff" * 3000, '"' + "////" * 1000 + '"'),
    Case("bit", "1", '"1"'),
    Case("bit(9)", "101010101", '"101010101"'),
    Case("varbit", "", '""'),
    Case("varbit", "xF0", '"11110000"'),
    Case("varbit(70)", "1" * 70, '"' + "1" * 70 + '"'),
]

TIMES = [
    Case("date", "2020-02-29", '"2020-02-29"'),
    Case("date", "0001-01-01", '"0001-01-01"'),
    Case("date", "5874897-12-31", '"5874897-12-31"'),
    Case("date", "4714-11-24 BC", '"4714-11-24 BC"'),
    Case("date", "infinity", '"infinity"'),
    Case("date", "-infinity", '"-infinity"'),
    Case("time", "00:00", '"00:00:00.000000"'),
    Case("time", "23:59:59.999999", '"23:59:59.999999"'),
    Case("time", "24:00:00", '"24:00:00.000000"'),
    Case("time(0)", "12:34:56.7", '"12:34:57.000000"'),
    Case("timetz", "12:00:01+02", '"12:00:01.000000+02:00"'),
    Case("timetz", "12:00:01.5-03:30", '"12:00:01.500000-03:30"'),
    Case("timetz", "00:00:00+15:59:59", '"00:00:00.000000+15:59:59"'),
    Case("timetz", "24:00:00-15:59:59", '"24:00:00.000000-15:59:59"'),
    Case("timetz", "12:00:00Z", '"12:00:00.000000+00:00"'),
    Case("timestamp", "1970-01-01", '"1970-01-01T00:00:00.000000"'),
    Case("timestamp", "2020-02-29 12:34:56.7", '"2020-02-29T12:34:56.700000"'),
    Case("timestamp", "1969-12-31 23:59:59.999999", '"1969-12-31T23:59:59.999999"'),
    Case("timestamp", "10000-01-01 00:00:00.000001", '"10000-01-01T00:00:00.000001"'),
    Case("timestamp", "294276-12-31 23:59:59.999999", '"294276-12-31T23:59:59.999999"'),
    Case("timestamp", "0044-03-15 10:00:00.5 BC", '"0044-03-15 10:00:00.5 BC"'),
    Case("timestamp", "4714-11-24 00:00:00 BC", '"4714-11-24 00:00:00 BC"'),
    Case("timestamp", "infinity", '"infinity"'),
    Case("timestamp", "-infinity", '"-infinity"'),
    Case("timestamp(3)", "2020-01-01 00:00:00.1236", '"2020-01-01T00:00:00.124000"'),
    Case("timestamptz", "2020-01-01 12:00+09", '"2020-01-01T03:00:00.000000Z"'),
    Case("timestamptz", "2020-06-01 00:00:00.25 America/St_Johns", '"2020-06-01T02:30:00.250000Z"'),
    Case("timestamptz", "1850-01-01 00:00 Europe/Amsterdam", '"1849-12-31T23:42:30.000000Z"'),
    Case("timestamptz", "294276-12-31 23:59:59.999999+00", '"294276-12-31T23:59:59.999999Z"'),
    Case("timestamptz", "9999-12-31 23:59:59-01", '"10000-01-01T00:59:59.000000Z"'),
    Case("timestamptz", "0044-03-15 10:00+00 BC", '"0044-03-15 10:00:00+00 BC"'),
    Case("timestamptz", "infinity", '"infinity"'),
    Case("timestamptz", "-infinity", '"-infinity"'),
    Case("interval", "0", '"00:00:00"'),
    Case("interval", "1 year -2 months 3 days -04:05:06.789", '"10 mons 3 days -04:05:06.789"'),
    Case("interval", "-178000000 years", '"-178000000 years"'),
    Case("interval", "2147483647 days 2562047788:00:54.775807", '"2147483647 days 2562047788:00:54.775807"'),
    Case("interval year to month", "P1Y2M", '"1 year 2 mons"'),
    Case("interval", "infinity", '"infinity"', since=17),
    Case("interval", "-infinity", '"-infinity"', since=17),
]

DOCUMENTS = [
    Case("json", "null", "null"),
    Case("json", '""', '""'),
    Case("json", "{}", "{}"),
    Case("json", "-0.10e+400", "-0.10e+400"),
    Case("json", "1" * 400, "1" * 400),
    Case("json", '{"b": 1, "a":2,"b" : 3}', '{"b": 1, "a":2,"b" : 3}'),
    Case("json", '\n{"a":\r\n\t[1,\n2]}\n', ' {"a":  \t[1, 2]} '),
    Case("json", '"a\\nb\\u0000\\ud83d\\ude00\\/ é😀"', '"a\\nb\\u0000\\ud83d\\ude00\\/ é😀"'),
    Case("json", "[" * 200 + "]" * 200, "[" * 200 + "]" * 200),
    Case("jsonb", "null", "null"),
    Case("jsonb", "true", "true"),
    Case("jsonb", '{"b": 1, "a": 2, "b" : 3}', '{"a": 2, "b": 3}'),
    Case("jsonb", "[1.10, 12345678901234567890.5, 1e3]", "[1.10, 12345678901234567890.5, 1000]"),
    Case("jsonb", "1e400", "1" + "0" * 400),
    Case("jsonb", '"a\\nb\\u001f\\" \\\\ é\\ud83d\\ude00"', '"a\\nb\\u001f\\" \\\\ é😀"'),
    Case("jsonb", '{"": [{}, [], null]}', '{"": [{}, [], null]}'),
    Case("jsonpath", "$.a[*] ? (@.b > 1)", '"$.\\"a\\"[*]?(@.\\"b\\" > 1)"'),
    Case("xml", '<a b="1">\n x</a>', '"<a b=\\"1\\">\\n x</a>"', needs="xml"),
    Case("xml", "", '""', needs="xml"),
    Case("tsvector", "'Fat':2A,4 'it''s':1 a", "\"'Fat':2A,4 'a' 'it''s':1\""),
    Case("tsvector", "", '""'),
    Case("tsvector", "'back\\\\slash \"q\"'", '"\'back\\\\\\\\slash \\"q\\"\'"'),
    Case("tsquery", "fat:ab & !'two words' | c:*", "\"'fat':AB & !'two words' | 'c':*\""),
    Case("tsquery", "a <2> b", "\"'a' <2> 'b'\""),
]

NETWORK = [
    Case("inet", "192.168.0.1", '"192.168.0.1"'),
    Case("inet", "192.168.0.1/24", '"192.168.0.1/24"'),
    Case("inet", "2001:DB8::1/64", '"2001:db8::1/64"'),
    Case("inet", "::ffff:1.2.3.4", '"::ffff:1.2.3.4"'),
    Case("cidr", "10", '"10.0.0.0/8"'),
    Case("cidr", "::/0", '"::/0"'),
    Case("macaddr", "08002B-010203", '"08:00:2b:01:02:03"'),
    Case("macaddr8", "08:00:2b:01:02:03", '"08:00:2b:ff:fe:01:02:03"'),
]

SYSTEM = [
    Case("oid", "0", "0"),
    Case("oid", "4294967295", "4294967295"),
    Case("xid", "4294967295", '"4294967295"'),
    Case("xid8", "18446744073709551615", '"18446744073709551615"'),
    Case("cid", "7", '"7"'),
    Case("tid", "(4294967295,65535)", '"(4294967295,65535)"'),
    Case("pg_lsn", "0/0", '"0/0"'),
    Case("pg_lsn", "FFFFFFFF/FFFFFFFF", '"FFFFFFFF/FFFFFFFF"'),
    Case("pg_snapshot", "10:20:10,14", '"10:20:10,14"'),
    Case("txid_snapshot", "10:20:10,14", '"10:20:10,14"'),
    Case("aclitem", "=r/postgres", '"=r/postgres"'),
    Case("regclass", "pg_class", '"pg_class"'),
    Case("regclass", '"Mixed ""Täble"', '"\\"Mixed \\"\\"Täble\\""'),
    Case("regclass", "4294967295", '"4294967295"'),
    Case("regclass", "-", '"-"'),
    Case("regcollation", '"C"', '"\\"C\\""'),
    Case("regconfig", "english", '"english"'),
    Case("regdictionary", "simple", '"simple"'),
    Case("regnamespace", "pg_catalog", '"pg_catalog"'),
    Case("regoper", "||/", '"||/"'),
    Case("regoperator", "+(integer,integer)", '"+(integer,integer)"'),
    Case("regproc", "now", '"now"'),
    Case("regprocedure", "abs(integer)", '"abs(integer)"'),
    Case("regrole", "postgres", '"postgres"'),
    Case("regtype", "timestamptz", '"timestamp with time zone"'),
    Case("int2vector", "1 -2", '"1 -2"'),
    Case("oidvector", "", '""'),
]

RANGES = [
    Case("int4range", "[1,3]", '"[1,4)"'),
    Case("int4range", "empty", '"empty"'),
    Case("int4range", "(,)", '"(,)"'),
    Case("int8range", "[-9223372036854775808,)", '"[-9223372036854775808,)"'),
    Case("numrange", "(1.10,Infinity]", '"(1.10,Infinity]"'),
    Case("daterange", "[2020-01-01,infinity]", '"[2020-01-01,infinity]"'),
    Case("tsrange", "[2020-01-01,2020-01-02)", '"[\\"2020-01-01 00:00:00\\",\\"2020-01-02 00:00:00\\")"'),
    Case("tstzrange", "[2020-01-01 09:00+09,)", '"[\\"2020-01-01 00:00:00+00\\",)"'),
    Case("words", '["a b","c""\\\\d"]', '"[\\"a b\\",\\"c\\"\\"\\\\\\\\d\\"]"'),
    Case("int4multirange", "{[1,3),[7,8]}", '"{[1,3),[7,9)}"'),
    Case("int4multirange", "{}", '"{}"'),
    Case("int8multirange", "{(,9223372036854775807)}", '"{(,9223372036854775807)}"'),
    Case("nummultirange", "{[1.5,2],(3,)}", '"{[1.5,2],(3,)}"'),
    Case("datemultirange", "{[2020-01-01,2020-01-03]}", '"{[2020-01-01,2020-01-04)}"'),
    Case("tsmultirange", "{[2020-01-01,infinity)}", '"{[\\"2020-01-01 00:00:00\\",infinity)}"'),
    Case("tstzmultirange", "{[2020-01-01 00:00Z,)}", '"{[\\"2020-01-01 00:00:00+00\\",)}"'),
    Case("words_multirange", "{[a,b)}", '"{[a,b)}"'),
]

GEOMETRY = [
    Case("point", "1.5,-0", '"(1.5,-0)"'),
    Case("point", "(NaN,Infinity)", '"(NaN,Infinity)"'),
    Case("line", "{1,-1,0.5}", '"{1,-1,0.5}"'),
    Case("lseg", "(0,0),(1e300,1)", '"[(0,0),(1e+300,1)]"'),
    Case("box", "(0,0),(1,1)", '"(1,1),(0,0)"'),
    Case("path", "[(0,0),(1,1)]", '"[(0,0),(1,1)]"'),
    Case("path", "((0,0),(1,1))", '"((0,0),(1,1))"'),
    Case("polygon", "(0,0),(1,1),(1,0)", '"((0,0),(1,1),(1,0))"'),
    Case("circle", "<(1,2),3>", '"<(1,2),3>"'),
]

OWN = [
    Case("mood", "sad", '"sad"'),
    Case("mood", "NULL", '"NULL"'),
    Case("mood", "", '""'),
    Case("mood", 'très "gai", {\\oui}', '"très \\"gai\\", {\\\\oui}"'),
    Case("temper", "sad", '"sad"'),
    Case("count", "7", "7"),
    Case("price", "1.005", '"1.01"'),
    Case("discount", "-0.5", '"-0.50"'),
    Case("document", '{"b": null}', '{"b": null}'),
    Case("digest", "\\x00ff", '"AP8="'),
    Case("moment", "2020-01-01 00:00:00.1236+00", '"2020-01-01T00:00:00.124000Z"'),
    Case("area", "(0,0),(1,1)", '"(1,1),(0,0)"'),
    Case("item", "(,,,,)", '"(,,,,)"'),
    Case("item", '(1,"a ""b""",,"{x,NULL}",)', '"(1,\\"a \\"\\"b\\"\\"\\",,\\"{x,NULL}\\",)"'),
    Case(
        "item",
        '(-1,"",2020-01-01 09:00+09,{},\\\\x00)',
        '"(-1,\\"\\",\\"2020-01-01 00:00:00+00\\",{},\\"\\\\\\\\x00\\")"',
    ),
    Case("nested", '("(1,a,,,)",2)', '"(\\"(1,a,,,)\\",2.00)"'),
    Case("thing", "(1,a,,,)", '"(1,a,,,)"'),
    # An array of a domain over an array has its elements as the database's own text.
    Case("tags", '{"a b",NULL}', '["a b",null]', arrays=False),
    Case("labels", "{{a},{b}}", '[["a"],["b"]]', arrays=False),
    Case("tags[]", '{"{a,NULL}",NULL}', '["{a,NULL}",null]', arrays=False),
]

ARRAYS = [
    Case("int4[]", "{}", "[]", arrays=False),
    Case("int4[]", "{NULL}", "[null]", arrays=False),
    Case("int4[]", "{{1,NULL},{3,4}}", "[[1,null],[3,4]]", arrays=False),
    Case("int4[3][1]", "{{{1},{2}},{{3},{4}}}", "[[[1],[2]],[[3],[4]]]", arrays=False),
    Case("int8[]", "[0:1]={1,-9223372036854775808}", "[1,-9223372036854775808]", arrays=False),
    Case("int2[]", "[-1:0][2:3]={{1,2},{3,4}}", "[[1,2],[3,4]]", arrays=False),
    Case("text[]", '{"",NULL,"NULL","null"," ","a,b","{x}"}', '["",null,"NULL","null"," ","a,b","{x}"]', arrays=False),
    Case("text[]", '{"q\\"","b\\\\s","n\n",é😀}', '["q\\"","b\\\\s","n\\n","é😀"]', arrays=False),
    Case("text[]", "{{a},{NULL}}", '[["a"],[null]]', arrays=False),
    Case("text[]", "{" + ",".join(["x"] * 3000) + "}", "[" + ",".join(['"x"'] * 3000) + "]", arrays=False),
    Case("bool[]", "[0:1]={t,f}", "[true,false]", arrays=False),
    Case("box[]", "{(1,1),(0,0);NULL;(2,2),(1,1)}", '["(1,1),(0,0)",null,"(2,2),(1,1)"]', arrays=False),
    Case("box[]", "{{(1,1),(0,0)};{(2,2),(1,1)}}", '[["(1,1),(0,0)"],["(2,2),(1,1)"]]', arrays=False),
    Case("area[]", "{(1,1),(0,0);(2,2),(1,1)}", '["(1,1),(0,0)","(2,2),(1,1)"]', arrays=False),
    Case("json[]", '{"{\\"a\\":\n1}","null",NULL,"[]"}', '[{"a": 1},null,null,[]]', arrays=False),
    Case("bytea[]", '{{"\\\\x","\\\\x00"}}', '[["","AA=="]]', arrays=False),
    Case("point[]", '{"(1,2)",NULL}', '["(1,2)",null]', arrays=False),
    Case("mood[]", '{sad,"NULL",NULL,""}', '["sad","NULL",null,""]', arrays=False),
]

EXTENSIONS = [
    Case("citext", "MiXed", '"MiXed"', needs="citext"),
    Case(
        "hstore",
        'a=>1, "b c"=>NULL, d=>"q\\""',
        '"\\"a\\"=>\\"1\\", \\"d\\"=>\\"q\\\\\\"\\", \\"b c\\"=>NULL"',
        "hstore",
    ),
    Case("hstore", "", '""', needs="hstore"),
    Case("ltree", "Top.Science.a_1", '"Top.Science.a_1"', needs="ltree"),
    Case("ltree", "", '""', needs="ltree"),
    Case("lquery", "Top.*{1,2}.!a", '"Top.*{1,2}.!a"', needs="ltree"),
    Case("cube", "(1,2),(3,4)", '"(1, 2),(3, 4)"', needs="cube"),
    Case("seg", "1.0 .. 2.50", '"1.0 .. 2.50"', needs="seg"),
    Case("isbn", "0-393-04002-X", '"0-393-04002-X"', needs="isn"),
    Case("vector(3)", "[1, -2.5, 3e-5]", '"[1,-2.5,3e-05]"', needs="vector"),
]

VALUES = {
    "numbers": NUMBERS,
    "floats": FLOATS,
    "texts": TEXTS,
    "bytes": BYTES,
    "times": TIMES,
    "documents": DOCUMENTS,
    "network": NETWORK,
    "system": SYSTEM,
    "ranges": RANGES,
    "geometry": GEOMETRY,
    "own": OWN,
    "arrays": ARRAYS,
    "extensions": EXTENSIONS,
}
"""The table: a database table for each group, a column for each case."""

OFFERS = {
    15: {"xml", "citext", "hstore", "ltree", "cube", "seg", "isn"},
    16: {"vector"},
    18: {"vector"},
}
"""Of what the cases need, what each server of the tests was built with; a test compares it with the server."""


class Value(NamedTuple):
    """A column of a group's table."""

    column: str
    type: str
    literal: str
    """SQL with one placeholder for each of `texts`."""
    texts: tuple[str, ...]
    json: str


def _none(_: Case) -> bool:
    return False


def values(group: str, major: int, without: Callable[[Case], bool] = _none) -> list[Value]:
    """The columns of a group on that major version: each case, then arrays of the cases."""
    cases = [case for case in VALUES[group] if major >= case.since and (not case.needs or case.needs in OFFERS[major])]
    cases = [case for case in cases if not without(case)]
    scalars = [Value(f"c{n}", case.type, "%s", (case.text,), case.json) for n, case in enumerate(cases)]
    return scalars + [_array(n, case) for n, case in enumerate(cases) if case.arrays]


def creation(major: int, without: Callable[[Case], bool] = _none) -> list[str]:
    """Statements that make all that the cases need: for each group the tables GROUP, and GROUP_full, which has
    REPLICA IDENTITY FULL. Cases for which `without` holds are left out."""
    extensions = sorted(OFFERS[major] - {"xml"})
    tables = [statement for group in VALUES for statement in _tables(group, values(group, major, without))]
    return [*(f'CREATE EXTENSION "{name}"' for name in extensions), *DEFINITIONS, *tables]


def changes(major: int, without: Callable[[Case], bool] = _none) -> Iterator[tuple[str, list[str] | None]]:
    """Statements and their parameters. Rows 1 and 2 of GROUP get the values, one by insert, one by update;
    GROUP_full's row comes, changes, goes."""
    for group in VALUES:
        columns = values(group, major, without)
        names, literals = (
            ", ".join(parts) for parts in zip(*((each.column, each.literal) for each in columns), strict=True)
        )
        texts = [text for each in columns for text in each.texts]
        assigned = ", ".join(f"{each.column} = {each.literal}" for each in columns)
        yield f"INSERT INTO {group} (id, {names}) VALUES (1, {literals})", texts
        yield f"INSERT INTO {group} (id) VALUES (2)", None
        yield f"UPDATE {group} SET {assigned} WHERE id = 2", texts
        yield f"INSERT INTO {group}_full (id, {names}) VALUES (1, {literals})", texts
        yield f"UPDATE {group}_full SET n = 1", None
        yield f"DELETE FROM {group}_full", None


def _tables(group: str, columns: list[Value]) -> Iterator[str]:
    listed = ", ".join(f"{each.column} {each.type}" for each in columns)
    for table in (group, f"{group}_full"):
        yield f"CREATE TABLE {table} (id int PRIMARY KEY, n int, {listed})"
    yield f"ALTER TABLE {group}_full REPLICA IDENTITY FULL"


def _array(number: int, case: Case) -> Value:
    kind = f"{case.type}[]"
    json = f"[{case.json},null,{case.json}]"
    return Value(f"a{number}", kind, f"ARRAY[%s, NULL, %s]::{kind}", (case.text, case.text), json)
