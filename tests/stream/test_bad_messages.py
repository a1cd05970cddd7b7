"""No message ends the process, takes much memory, or changes how other messages are read."""

import collections
import json
import resource
import subprocess
import sys

import numpy as np
import pyarrow as pa
import pytest

from ctr_trainer.data.batch import batch_of
from ctr_trainer.features.spec import FeatureSpec
from ctr_trainer.live.stream.messages import MessageDecoder, rows_in
from tests.stream.test_messages import TOML, arrow, example, keys_of, messages, row

_SECONDS = 300
_MUTATIONS = 1100  # Of these, 1,015 are of JSON and Arrow messages; the others are Examples.
_HUGE = 2**53 + 1  # float64 does not represent it.


@pytest.fixture
def decoder(tmp_path):
    return _decoder(tmp_path)


def _decoder(directory):
    (directory / "spec.toml").write_text(TOML)
    return MessageDecoder(FeatureSpec.load(directory / "spec.toml"), {}, "kafka topic clicks")


def written(table, new=pa.ipc.new_stream, **options):
    sink = pa.BufferOutputStream()
    with new(sink, table.schema, options=pa.ipc.IpcWriteOptions(**options)) as writer:
        writer.write_table(table)
    return sink.getvalue().to_pybytes()


def users_of(decoder, *values):
    """Returns the key of each message's user; None for a bad message."""
    found = decoder.decode(messages(*values))
    keys = dict(zip(found.messages.tolist(), keys_of(found.rows)[:, 0].tolist(), strict=True))
    return [keys.get(number) for number in range(len(values))]


def reasons(decoder, *values):
    return {each.message: each.reason for each in decoder.decode(messages(*values)).bad}


def _mutations(count):
    """Yields damaged messages of all formats."""
    random = np.random.default_rng(1)
    rows = [row(number) for number in range(20)]
    table = pa.Table.from_pylist(rows)
    coded = table.set_column(0, "user", pa.array([each["user"] for each in rows]).dictionary_encode())
    intact = [arrow(*rows), written(table, compression="zstd"), written(coded), written(table, pa.ipc.new_file)]
    intact += [*(json.dumps(each).encode() for each in rows[:4])] * 2 + [example(rows[0])]
    for number in range(count):
        value = bytearray(intact[number % len(intact)])
        for _ in range(random.integers(1, 3)):
            at = random.integers(len(value))
            kind = random.integers(5)
            if kind == 0:
                value[at] = random.integers(256)
            elif kind == 1:
                value[at] ^= 1 << random.integers(8)
            elif kind == 2:
                del value[at : at + random.integers(1, 9)]
            elif kind == 3:
                value[at:at] = bytes(value[at : at + random.integers(1, 9)])
            else:
                value[at : at + 4] = random.integers(-(2**31), 2**31, dtype=np.int64).astype(np.int32).tobytes()
        yield bytes(value)


def fuzz(directory):
    """Decodes damaged messages, each alone and all together."""
    decoder, alone = _decoder(directory), _decoder(directory)
    damaged, counts = list(_mutations(_MUTATIONS)), collections.Counter()
    for first in range(0, len(damaged), 50):
        group = damaged[first : first + 50]
        together = decoder.decode(messages(row(0), *group, row(1)))
        assert together.messages[0] == 0 and together.messages[-1] == len(group) + 1
        bad = {each.message for each in together.bad}
        for number, value in enumerate(group, 1):
            found, is_there = alone.decode(messages(value)), together.messages == number
            if not value.startswith(b"\n"):  # TensorFlow and protobuf disagree about damaged Examples.
                np.testing.assert_array_equal(keys_of(found.rows), keys_of(together.rows)[is_there], str(value))
                assert bool(found.bad) == (number in bad), value
            rows_in(value)
            counts["bad" if found.bad else "rows" if len(found.rows) else "empty"] += 1
    assert sum(counts.values()) == _MUTATIONS and counts["bad"] > 200 and counts["rows"] > 40, counts


def bombs(directory):
    """Decodes the messages in a directory, which are too large."""
    decoder = _decoder(directory)
    decoder.decode(messages(row(0), arrow(row(0))))
    values = [path.read_bytes() for path in sorted(directory.glob("*.message"))]
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    found = decoder.decode(messages(*values, row(1)))
    assert found.messages.tolist() == [len(values)] and len({each.message for each in found.bad}) == len(values)
    grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) // 1024
    assert grown < 200, [each.reason for each in found.bad]


def test_hostile_messages_neither_end_the_process_nor_take_its_memory(tmp_path):
    size = 1 << 28
    long = pa.StringArray.from_buffers(1, pa.py_buffer(np.int32([0, size]).tobytes()), pa.py_buffer(b"u" * size))
    words = pa.DictionaryArray.from_arrays(pa.array([0] * 100_000, pa.int32()), pa.array(["u" * 1_000_000]))
    _, view, text = pa.array(["u" * 1_000_000], pa.string_view()).buffers()
    views = pa.Array.from_buffers(pa.string_view(), 1000, [None, pa.py_buffer(view.to_pybytes() * 1000), text])
    values = [
        written(pa.table({"user": long}), compression="zstd"),
        written(pa.table({"clicked": pa.nulls(1 << 27)})),
        written(pa.table({"user": words})),
        written(pa.table({"user": views})),
        b'{"user":"' + b"u" * 50_000_000 + b'"}',
        b'{"x":[' + b"[]," * 1_300_000 + b"[]]}",
        b'{"x":' + b"[" * 2_000_000 + b"]" * 2_000_000 + b"}",
    ]
    for number, value in enumerate(values):
        (tmp_path / f"{number}.message").write_bytes(value)
    call = f"bombs(pathlib.Path({str(tmp_path)!r})); t.fuzz(pathlib.Path({str(tmp_path)!r}))"
    code = f"import pathlib; from tests.stream import test_bad_messages as t; t.{call}"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=_SECONDS)
    assert found.returncode == 0, f"exit status {found.returncode}: {found.stderr[-3000:]}"


def test_long_messages_are_parsed_in_parts(decoder, monkeypatch):
    values = [row(number) for number in range(20)]
    expected = users_of(decoder, *values)
    monkeypatch.setattr("ctr_trainer.live.stream.json_messages._MOST_TOGETHER", 300)
    assert users_of(decoder, *values) == expected
    assert reasons(decoder, *values, b"{", *values, b"{").keys() == {20, 41}
    (reason,) = reasons(decoder, row(0, clicked="u" * 3_000_000)).values()
    assert "is not" in reason and len(reason) < 1000


def test_two_columns_of_one_name_are_a_bad_record(decoder):
    table = pa.Table.from_pylist([row(1)])
    twice = table.append_column("clicked", pa.array([0]))
    unread = table.append_column("other", pa.array([0])).append_column("other", pa.array([0]))
    values = written(twice), json.dumps(row(1)).encode()[:-1] + b', "clicked": 0}', written(unread), row(2)
    found = reasons(decoder, *values)
    assert found.keys() == {0, 1} and "has 2 columns named 'clicked'" in found[0]
    assert "column 'clicked' is there more than once" in found[1]


def test_bytes_after_the_end_of_an_arrow_stream_are_a_bad_record(decoder):
    one = arrow(row(1))
    file = written(pa.Table.from_pylist([row(1)]), pa.ipc.new_file)
    found = reasons(decoder, one + arrow(row(2)), one + bytes(8), file)
    assert [*found] == [0] and "after the end of its Arrow stream" in found[0]


def test_columns_that_repeat_their_values_are_bad_records_if_they_are_read(decoder):
    table = pa.Table.from_pylist([row(1), row(2)])
    runs = pa.RunEndEncodedArray.from_arrays(pa.array([2], pa.int32()), pa.array(["u"]))
    views = pa.ListViewArray.from_arrays([0, 0], [2, 2], pa.array(["a", "b"]))
    of_runs = pa.ListArray.from_arrays(pa.array([0, 1, 2], pa.int32()), runs)
    wrong = {"user": runs, "tags": views, "item": of_runs, "price": pa.array([{"a": 1.0}] * 2)}
    unread = table.append_column("other", runs).append_column("more", views)
    values = [table.set_column(table.column_names.index(name), name, of) for name, of in wrong.items()]
    found = decoder.decode(messages(*map(written, [*values, unread])), {4: 1})
    assert found.messages.tolist() == [4] and found.places.tolist() == [1]
    for (name, of), bad in zip(wrong.items(), found.bad, strict=True):
        assert f"column {name!r}: has the type {of.values.type if of is of_runs else of.type}; expected" in bad.reason
    assert rows_in(written(unread)) == 2 and rows_in(written(unread.select(["other"]))) == 2
    assert decoder.decode(messages(written(unread.select(["other"])))).bad


def test_a_key_does_not_depend_on_the_values_that_were_read_before(decoder, tmp_path):
    values = [row(1, user=each) for each in (_HUGE, _HUGE + 1, "7", 7, 7.0, 7.5, True, 10**30, [9], None, 1e300, -0.0)]
    alone = [users_of(_decoder(tmp_path), value)[0] for value in values]
    assert alone[2] == alone[3] == alone[4] and len(set(alone)) == len(alone) - 2 and None not in alone
    assert alone[:2] == users_of(_decoder(tmp_path), *(row(1, user=str(_HUGE + more)) for more in range(2)))
    floats = [row(number, user=float(number)) for number in range(300)]
    assert len(set(users_of(decoder, *floats))) == 300
    for order in (values, values[::-1]):
        decoder.decode(messages(*floats))
        found = users_of(decoder, *floats[:5], *order)[5:]
        assert found == (alone if order is values else alone[::-1])
        for value, expected in zip(values, alone, strict=True):
            assert users_of(decoder, value) == [expected]


def test_a_text_of_a_bag_is_split_whether_or_not_other_messages_have_lists(decoder):
    for values in ([row(1, tags="a|b")], [row(1, tags=["a|b"])], [row(1, tags="a|b"), row(1, tags=["a|b"])]):
        found = decoder.decode(messages(*values))
        lengths = [1 if isinstance(value["tags"], list) else 2 for value in values]
        assert np.diff(batch_of(found.rows, len(found.rows)).bags["tags"].splits).tolist() == lengths


def test_examples_with_other_kinds_of_a_feature_have_the_same_keys(decoder):
    values = [example(row(1, user=each)) for each in (7.0, _HUGE, "x", 7)]
    keys = users_of(decoder, *values)
    assert keys[0] == keys[3] and None not in keys
    assert keys[1:3] == users_of(decoder, row(1, user=_HUGE), row(1, user="x"))
    assert keys[::-1] == users_of(decoder, *values[::-1])


def test_a_late_record_that_is_not_positive_is_bad(tmp_path):
    (tmp_path / "spec.toml").write_text(TOML.replace("[label]", '[[label]]\ncolumn = "late"\n[[label]]'))
    late = MessageDecoder(FeatureSpec.load(tmp_path / "spec.toml"), {}, "kafka topic clicks", ("clicked", "late"))
    values = [row(0, clicked=click, late=is_late) for click in (0, 1) for is_late in (0, 1)]
    found = late.decode(messages(*values))
    assert found.messages.tolist() == [0, 2, 3] and len(found.rows) == 3
    assert found.bad[0].message == 1 and "label 'late' is 1, but label 'clicked' is 0" in found.bad[0].reason


def test_half_surrogates_and_deep_lists_are_bad_records(decoder):
    half, deep = rb'{"user": "\ud800", "clicked": 1}', b'{"x": ' + b"[" * 3000 + b"]" * 3000 + b', "clicked": 1}'
    text = json.dumps(row(3, user="[" * 3000)).encode()
    found = reasons(decoder, row(0), half, deep, text, row(1, tags=["\udc00"]), row(1, tags=[["a"]]))
    assert found.keys() == {1, 2, 4, 5}
    assert "half of a surrogate pair" in found[1] and "column 'tags'" in found[4] and "nested over" in found[2]


def test_text_that_is_not_utf_8_is_a_bad_record_that_names_the_byte(decoder):
    latin = json.dumps(row(0, user="Z\xfcrich"), ensure_ascii=False).encode("latin-1")
    wide = json.dumps(row(0, user="Z\xfcrich")).encode("utf-16-le")
    texts = pa.StringArray.from_buffers(1, pa.py_buffer(np.int32([0, 6]).tobytes()), pa.py_buffer(b"Z\xfcrich"))
    table = pa.Table.from_pylist([row(0)]).set_column(0, "user", texts)
    found = reasons(decoder, row(0), latin, wide, written(table), row(1, user="Z\xfcrich"))
    assert found.keys() == {1, 2, 3}
    assert (
        "byte 0xfc at position" in found[1]
        and "column 'user'" in found[3]
        and "UTF8 sequence at string index 0" in found[3]
    )


def test_each_json_message_is_read_by_itself_although_torn_ones_fit_together(decoder):
    decoder.decode(messages(*(row(number) for number in range(10))))
    two, rest = json.dumps(row(1)).encode() + json.dumps(row(2)).encode(), b'{"user": "u9", "x": '
    values = [row(0), two, row(3), rest, b"{}}", row(4)]
    assert reasons(decoder, *values).keys() == {1, 3, 4}
    good = users_of(decoder, *values)
    assert [good[0], good[2], good[5]] == users_of(decoder, row(0), row(3), row(4))
