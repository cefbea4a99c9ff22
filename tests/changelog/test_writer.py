"""The writer: durable appends, atomic transactions, one writer at a time, and whatever a crash leaves behind."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tailrace.changelog import LogReader, LogWriter, head, manifest
from tailrace.contracts import Capture
from tailrace.errors import LogError
from tailrace.testing.captures import ITEMS, Row, capture, insert
from tests.changelog.looking import changes, newest, seqs, transaction_ends, values

Write = Callable[..., LogWriter]


def test_what_is_appended_is_read(path: Path, write: Write) -> None:
    writer = write(clock=lambda: 12.5)
    end = writer.append(capture([insert(1, "a"), insert(2, "b")], [insert(3, "c")], first_xid=7))
    rows = changes(path)
    assert end == 3 == head(path)
    assert rows[0] == {
        "seq": 0,
        "lane": rows[0]["lane"],
        "source": "shop",
        "op": "c",
        "database": "shop",
        "schema": "public",
        "table": "items",
        "key": '{"id":1}',
        "before": None,
        "after": '{"id":1,"v":"a"}',
        "unchanged": None,
        "ts_us": 1_700_000_000_000_007,
        "captured_us": 12_500_000,
        "tx_id": "7",
        "tx_ordinal": 0,
        "tx_last": False,
        "position": "0/7",
        "schema_id": 0,
        "headers": None,
    }
    assert [(row["tx_id"], row["tx_ordinal"], row["tx_last"]) for row in rows] == [
        ("7", 0, False),
        ("7", 1, True),
        ("8", 0, True),
    ]


def test_every_field_of_a_row_survives(path: Path, write: Write) -> None:
    row = Row(
        "u",
        {"id": 1},
        before={"id": 1, "v": "old"},
        after={"id": 1},
        unchanged=["v", "w"],
        headers={"old_key": '{"id":0}', "origin": "elsewhere"},
    )
    write().append(capture([row, insert(2)]))
    first, second = changes(path)
    assert (first["op"], first["before"], first["after"]) == ("u", '{"id":1,"v":"old"}', '{"id":1}')
    assert first["unchanged"] == ["v", "w"]
    assert first["headers"] == [("old_key", '{"id":0}'), ("origin", "elsewhere")]
    assert (second["unchanged"], second["headers"]) == (None, None)


def test_idle_positions_are_durable_and_have_no_rows(path: Path, write: Write) -> None:
    writer = write()
    writer.append(capture([insert(1)]))
    writer.append(Capture(None, {"lsn": "0/99"}))
    writer.close()
    assert write().state().resume == {"lsn": "0/99"}
    assert head(path) == 1


def test_state_survives_a_reopen(write: Write) -> None:
    writer = write()
    writer.append(capture([insert(1)], [insert(2)]))
    writer.close()
    again = write()
    assert again.state().resume == {"lsn": "0/2"}
    assert again.state().book.versions == (ITEMS,)
    assert again.end == 2


def test_a_second_writer_is_refused(path: Path, write: Write) -> None:
    write()
    with pytest.raises(LogError) as caught:
        LogWriter(path, "shop")
    assert caught.value.code == "log.locked"
    assert "stop the other tap" in caught.value.hint


# -- large transactions ------------------------------------------------------------------------------------------


def test_parts_stay_invisible_until_the_end_is_appended(path: Path, write: Write) -> None:
    writer = write()
    writer.append(capture([insert(1)], first_xid=1))
    writer.append(capture([insert(n) for n in range(10)], first_xid=2, open_end=True))
    writer.append(capture([insert(n) for n in range(10, 20)], first_xid=2, ordinal=10, open_end=True))
    assert head(path) == 1
    assert len(changes(path)) == 1
    writer.append(capture([insert(20)], [insert(21)], first_xid=2, ordinal=20))
    rows = changes(path)
    assert seqs(rows) == list(range(23))
    assert transaction_ends(rows) == {1, 22, 23}
    assert [row["tx_ordinal"] for row in rows] == [0, *range(21), 0]
    assert {row["tx_id"] for row in rows[1:22]} == {"2"}


def test_the_end_of_a_large_transaction_may_have_no_rows(path: Path, write: Write) -> None:
    writer = write()
    writer.append(capture([insert(n) for n in range(10)], open_end=True))
    writer.append(Capture(None, {"lsn": "0/5"}))
    writer.append(capture([insert(1)], first_xid=2))
    assert transaction_ends(changes(path)) == {10, 11}


def test_a_rolled_back_transaction_leaves_nothing(path: Path, write: Write) -> None:
    writer = write()
    writer.append(capture([insert(n) for n in range(10)], open_end=True))
    writer.rollback()
    assert writer.state().book.versions == ()
    writer.append(capture([insert(99)], first_xid=4))
    assert values(changes(path)) == ['{"id":99,"v":"x"}']


def test_a_crash_between_parts_leaves_nothing(path: Path, write: Write) -> None:
    writer = write()
    writer.append(capture([insert(1)]))
    writer.append(capture([insert(n) for n in range(10)], first_xid=2, open_end=True))
    writer.close()
    again = write()
    assert (again.state().resume, again.end) == ({"lsn": "0/1"}, 1)
    again.append(capture([insert(2)], first_xid=2))
    assert values(changes(path)) == ['{"id":1,"v":"x"}', '{"id":2,"v":"x"}']


def test_a_large_transaction_spans_segments(path: Path, write: Write) -> None:
    writer = write(segment_bytes=4096)
    for part in range(8):
        numbers = range(part * 50, part * 50 + 50)
        writer.append(capture([insert(n) for n in numbers], ordinal=part * 50, open_end=True))
    writer.append(capture([insert(400)], ordinal=400))
    [line] = LogReader(path).lines
    assert len({frame.segment for frame in line.frames}) > 2
    rows = changes(path)
    assert seqs(rows) == list(range(401))
    assert transaction_ends(rows) == {401}


# -- torn tails --------------------------------------------------------------------------------------------------


def test_a_half_written_line_is_invisible_and_cut_wherever_it_is_torn(path: Path, write: Write) -> None:
    writer = write()
    writer.append(capture([insert(1)]))
    manifest_file = newest(path / "manifest")
    whole = manifest_file.stat().st_size
    writer.append(capture([insert(2)], first_xid=2))
    writer.close()
    data = manifest_file.read_bytes()
    for size in range(whole, len(data)):
        manifest_file.write_bytes(data[:size])
        assert head(path) == 1, f"torn at byte {size}"
        again = LogWriter(path, "shop")
        assert (again.end, again.state().resume) == (1, {"lsn": "0/1"}), f"torn at byte {size}"
        again.append(capture([insert(3)], first_xid=2))
        again.close()
        assert values(changes(path)) == ['{"id":1,"v":"x"}', '{"id":3,"v":"x"}'], f"torn at byte {size}"


def test_bytes_no_line_refers_to_are_cut(path: Path, write: Write) -> None:
    writer = write()
    writer.append(capture([insert(1)]))
    writer.close()
    segment = newest(path / "segments")
    size = segment.stat().st_size
    with segment.open("ab") as file:
        file.write(b"half a frame")
    orphan = path / "segments" / "000000000009.seg"
    orphan.write_bytes(b"never registered")
    again = write()
    assert segment.stat().st_size == size
    assert not orphan.exists()
    again.append(capture([insert(2)], first_xid=2))
    assert len(changes(path)) == 2


def test_a_manifest_file_whose_header_never_became_whole_is_removed(path: Path, write: Write) -> None:
    writer = write()
    writer.append(capture([insert(1)]))
    writer.close()
    torn = path / manifest.file_name(1)
    torn.write_bytes(newest(path / "manifest").read_bytes()[:40])
    again = write()
    assert not torn.exists()
    again.append(capture([insert(2)], first_xid=2))
    assert seqs(changes(path)) == [0, 1]


@pytest.mark.parametrize("victim", ["header", "line"])
def test_damage_before_whole_lines_is_never_cut_away(path: Path, write: Write, victim: str) -> None:
    writer = write()
    writer.append(capture([insert(1)]))
    writer.append(capture([insert(2)], first_xid=2))
    writer.close()
    file = newest(path / "manifest")
    lines = file.read_bytes().splitlines(keepends=True)
    place = 0 if victim == "header" else 1
    lines[place] = lines[place].replace(b'"base":0', b'"base":1')
    file.write_bytes(b"".join(lines))
    with pytest.raises(LogError) as caught:
        LogWriter(path, "shop")
    assert caught.value.code == "log.corrupt"
    assert file.read_bytes() == b"".join(lines)


def test_segments_without_a_manifest_are_left_alone(path: Path, write: Write) -> None:
    writer = write()
    writer.append(capture([insert(1)]))
    writer.close()
    shutil.rmtree(path / "manifest")
    write().append(capture([insert(2)]))
    assert values(changes(path)) == ['{"id":2,"v":"x"}']


# -- fencing and generations -------------------------------------------------------------------------------------


def test_lines_of_a_fenced_writer_do_not_exist(path: Path, write: Write) -> None:
    """A writer that lost its lock without noticing (a network file system) appends behind its successor."""
    first = write()
    first.append(capture([insert(1)]))
    old_epoch = first.epoch
    first.close()
    second = write()
    second.append(capture([insert(2)], first_xid=2))
    stale = manifest.Line(epoch=old_epoch, base=1, rows=5, at_us=0, resume={"lsn": "F/F"})
    with newest(path / "manifest").open("ab") as file:
        file.write(manifest.encode(stale))
    second.append(capture([insert(3)], first_xid=3))
    assert seqs(changes(path)) == [0, 1, 2]
    second.close()
    third = write()
    assert (third.end, third.state().resume) == (3, {"lsn": "0/3"})


def test_every_writer_has_a_newer_epoch(write: Write) -> None:
    epochs = []
    for _ in range(3):
        writer = write()
        epochs.append(writer.epoch)
        writer.close()
    assert epochs == sorted(set(epochs))


def test_a_recreated_log_is_another_log_with_higher_offsets(path: Path, write: Write) -> None:
    writer = write()
    writer.append(capture([insert(1)], [insert(2)]))
    writer.close()
    shutil.rmtree(path)
    again = write()
    assert again.log_id != writer.log_id
    assert again.end > writer.end
    assert again.state().resume is None
    assert LogReader(path).earliest == again.end


# -- rolling -----------------------------------------------------------------------------------------------------


def test_manifest_and_segments_roll_across_reopens(path: Path) -> None:
    total = 0
    for _ in range(5):
        writer = LogWriter(path, "shop", segment_bytes=2000, manifest_bytes=900)
        for _ in range(7):
            total = writer.append(capture([insert(total), insert(total + 1)], first_xid=total + 1))
        writer.close()
    assert len(list((path / "manifest").iterdir())) > 3
    assert len(list((path / "segments").iterdir())) > 3
    rows = changes(path)
    assert seqs(rows) == list(range(70))
    assert [json.loads(row["after"])["id"] for row in rows] == list(range(70))
    assert all(schema == ITEMS for schema in LogReader(path, start=69).schemas.values())


# -- no space ----------------------------------------------------------------------------------------------------

FULL_DISK = """
import json, resource, sys
from tailrace.changelog import LogWriter
from tailrace.errors import LogError
from tailrace.testing.captures import capture, insert

path, limit = sys.argv[1], int(sys.argv[2])
writer = LogWriter(path, "shop")
resource.setrlimit(resource.RLIMIT_FSIZE, (limit, resource.RLIM_INFINITY))
done, codes = 0, []
while not codes:
    try:
        done = writer.append(capture([insert(done)], first_xid=done + 1))
    except LogError as error:
        codes.append(error.code)
writer.close()
resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
writer = LogWriter(path, "shop")
end = writer.append(capture([insert(done)], first_xid=done + 1))
print(json.dumps({"codes": codes, "done": done, "end": end}))
"""


@pytest.mark.parametrize("limit", [3000, 3001, 3500, 5000, 8192])
def test_no_space_loses_nothing(path: Path, limit: int) -> None:
    """The limit on file sizes cuts a write in the middle, as a full disk does."""
    outcome = json.loads(
        subprocess.run(
            [sys.executable, "-c", FULL_DISK, str(path), str(limit)], capture_output=True, check=True, timeout=60
        ).stdout
    )
    assert outcome["codes"] == ["log.no_space"]
    # The append that failed may have become durable before the next manifest file could not be begun.
    assert outcome["end"] == outcome["done"] + 1
    assert seqs(changes(path)) == list(range(outcome["end"]))


def test_no_space_at_a_reopen_frees_the_lock(path: Path, write: Write) -> None:
    writer = write()
    writer.append(capture([insert(1)]))
    writer.close()
    file = newest(path / "manifest")
    saved = file.read_bytes()
    script = (
        "import resource, sys\n"
        "from tailrace.changelog import LogWriter\n"
        "from tailrace.errors import LogError\n"
        "codes = []\n"
        "for limit in (int(sys.argv[2]), resource.RLIM_INFINITY):\n"
        "    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, resource.RLIM_INFINITY))\n"
        "    try:\n"
        "        LogWriter(sys.argv[1], 'shop')\n"
        "    except LogError as error:\n"
        "        codes.append(error.code)\n"
        "print(codes)"
    )
    done = subprocess.run(
        [sys.executable, "-c", script, str(path), str(len(saved) + 3)],
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    assert done.stdout.strip() == "['log.no_space']"


def test_a_full_device_is_no_space(path: Path, write: Write) -> None:
    writer = write()
    (path / "segments").mkdir()
    os.symlink("/dev/full", path / "segments" / "000000000001.seg")
    with pytest.raises(LogError) as caught:
        writer.append(capture([insert(1)]))
    assert caught.value.code == "log.no_space"
    assert head(path) == 0


# -- kill -9 -----------------------------------------------------------------------------------------------------

ENDLESS = """
import sys
from tailrace.changelog import LogWriter
from tailrace.testing.captures import capture, insert

writer = LogWriter(sys.argv[1], "shop", segment_bytes=20_000, manifest_bytes=5_000)
number = int((writer.state().resume or {"lsn": "0/0"})["lsn"][2:], 16)
while True:
    number += 1
    whole = [insert(number * 100 + n) for n in range(10)]
    if number % 5 == 0:
        writer.append(capture(whole[:4], first_xid=number, open_end=True))
        writer.append(capture(whole[4:8], first_xid=number, ordinal=4, open_end=True))
        end = writer.append(capture(whole[8:], first_xid=number, ordinal=8))
    else:
        end = writer.append(capture(whole, first_xid=number))
    print(end, flush=True)
"""


def test_a_killed_writer_loses_nothing_it_confirmed(path: Path) -> None:
    confirmed = 0
    for kill in range(8):
        child = subprocess.Popen([sys.executable, "-c", ENDLESS, str(path)], stdout=subprocess.PIPE, text=True)
        assert child.stdout is not None
        goal = confirmed + 10 * (1 + 7 * kill)
        while confirmed < goal:
            confirmed = int(child.stdout.readline())
        child.send_signal(signal.SIGKILL)
        for line in child.stdout.read().splitlines(keepends=True):
            confirmed = int(line) if line.endswith("\n") else confirmed
        child.wait()
        LogWriter(path, "shop").close()
        assert head(path) >= confirmed
    rows = changes(path)
    assert seqs(rows) == list(range(head(path)))
    assert [row["tx_id"] for row in rows] == [str(1 + n // 10) for n in range(len(rows))]
    assert [row["tx_ordinal"] for row in rows] == [n % 10 for n in range(len(rows))]
    assert transaction_ends(rows) == set(range(10, len(rows) + 1, 10))
