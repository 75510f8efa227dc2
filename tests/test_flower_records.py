import json

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, ConfigRecord, MetricRecord, RecordDict
from flwr.supercore.inflatable.inflatable_object import get_all_nested_objects
from flwr.supercore.inflatable.inflatable_utils import inflate_object_from_contents
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import array_shapes, arrays

from kinfed.backends.flower.records import (
    ARRAYS,
    DTYPES,
    TEXT,
    decode_arrays,
    decode_message,
    decode_request,
    encode_arrays,
    encode_message,
    encode_request,
)
from kinfed.backends.wire import Message, Request

SETTINGS = st.dictionaries(
    st.text(max_size=5),
    st.one_of(
        st.none(), st.booleans(), st.integers(), st.floats(allow_nan=False), st.text(max_size=8), st.just([1, [2.5]])
    ),
    max_size=4,
)


@st.composite
def named_arrays(draw):
    names = draw(st.lists(st.text(max_size=6), max_size=4, unique=True))
    shapes = array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=4)
    return {name: draw(arrays(draw(st.sampled_from(list(DTYPES.values()))), draw(shapes))) for name in names}


def over_the_wire(records):
    """What the other side gets: every object as bytes, put together again by Flower."""
    contents = {key: one.deflate() for key, one in get_all_nested_objects(records).items()}
    count = len(contents)  # it is emptied as it is read
    return inflate_object_from_contents(records.object_id, contents), count


@settings(max_examples=80, deadline=None)
@given(SETTINGS, named_arrays())
def test_requests_arrive_as_they_were_sent(content, sent):
    records, _ = over_the_wire(encode_request(Request("train", content, sent)))
    received = decode_request(records)
    assert received.question == "train"
    assert received.settings == content
    assert list(received.arrays) == list(sent)
    for name, array in sent.items():
        got = received.arrays[name]
        assert got.dtype.str == array.dtype.str
        assert got.shape == array.shape
        assert got.tobytes() == array.tobytes()
        assert got.flags.writeable
        assert got.flags.aligned
        assert got.flags.owndata


def test_arrays_that_are_not_contiguous_keep_their_values():
    whole = np.arange(24.0).reshape(4, 6)
    sent = {"transposed": whole.T, "strided": whole[::2, ::3], "reversed": whole[::-1]}
    received = decode_message(encode_message(Message({}, sent))).arrays
    for name, array in sent.items():
        np.testing.assert_array_equal(received[name], array)


def test_a_message_is_few_objects_however_many_arrays_it_holds():
    # Every object is a request over the network at each hop.
    one, hundred = (
        over_the_wire(encode_message(Message({}, {str(j): np.full(3, float(j)) for j in range(n)})))[1] for n in (1, 100)
    )
    assert one == hundred == 5


@pytest.mark.parametrize("array", [np.array([None]), np.array(["a"]), np.array([1j]), np.zeros(2, "M8[s]")])
def test_types_that_may_not_cross_are_refused_by_the_sender(array):
    with pytest.raises(ValueError, match="does not fit into a message"):
        encode_message(Message({}, {"a": array}))


def packed(listed, numbers, stype="kinfed.packed", length=None):
    head = listed if isinstance(listed, bytes) else json.dumps(listed).encode()
    data = (len(head) if length is None else length).to_bytes(8, "little") + head + numbers
    return ArrayRecord({"packed": Array("uint8", (len(data),), stype, data)})


@pytest.mark.parametrize(
    "listed, numbers, match",
    [
        ([["a", "|O", [1]]], bytes(8), "may not cross"),
        ([["a", "<U1", [2]]], bytes(8), "may not cross"),
        ([["a", "<f8,<f8", [1]]], bytes(16), "may not cross"),
        ([["a", ["<f8"], [1]]], bytes(8), "may not cross"),
        ([["a", "<f8", [2]]], bytes(8), "cut off"),
        ([["a", "<f8", [10**18, 10**18]]], bytes(8), "cut off"),
        ([["a", "<f8", [1]]], bytes(9), "1 bytes more"),
        ([["a", "<f8", [-1]]], b"", "no proper shape"),
        ([["a", "<f8", [True]]], bytes(8), "no proper shape"),
        ([["a", "<f8", [1.0]]], bytes(8), "no proper shape"),
        ([["a", "<f8", 1]], bytes(8), "no proper shape"),
        ([["a", "<f8", [0] * 100]], b"", "dim"),
        ([["a", "<f8", [1]], ["a", "<f8", [1]]], bytes(16), "two arrays"),
        ([[1, "<f8", [1]]], bytes(8), "must be text"),
        ([["a", "<f8"]], b"", "by name, type and shape"),
        ({"a": 1}, b"", "must list"),
        ([["a", "|b1", [1]]], b"\x02", "true and false"),
        (b"not json", b"", "Expecting"),
        (b"\xff\xfe", b"", "Expecting|decode"),
        (b"[" * 200_000, b"", "nested too deeply"),
    ],
)
def test_malformed_arrays_are_value_errors(listed, numbers, match):
    with pytest.raises(ValueError, match=match):
        decode_arrays(packed(listed, numbers))


def test_a_list_of_arrays_that_is_cut_off_or_packed_otherwise_is_refused():
    with pytest.raises(ValueError, match="cut off"):
        decode_arrays(packed([], b"", length=10**9))
    with pytest.raises(ValueError, match="packed into one"):
        decode_arrays(packed([], b"", stype="numpy.ndarray"))
    with pytest.raises(ValueError, match="packed into one"):
        decode_arrays(ArrayRecord([np.zeros(3)]))
    with pytest.raises(ValueError, match="cut off"):
        decode_arrays(ArrayRecord({"packed": Array("uint8", (1,), "kinfed.packed", b"\x05")}))


@pytest.mark.parametrize(
    "records, match",
    [
        ({}, "no text"),
        ({TEXT: ConfigRecord({})}, "no text"),
        ({TEXT: ConfigRecord({"content": 3})}, "no text"),
        ({TEXT: MetricRecord({"content": 1})}, "no text"),
        ({TEXT: ConfigRecord({"content": "{"})}, "Expecting"),
        ({TEXT: ConfigRecord({"content": "[" * 200_000})}, "nested too deeply"),
        ({TEXT: ConfigRecord({"content": "[]"})}, "must hold settings"),
        ({TEXT: ConfigRecord({"content": '{"settings": []}'})}, "must hold settings"),
        ({TEXT: ConfigRecord({"content": '{"settings": {}, "more": 1}'})}, "nothing else"),
        ({TEXT: ConfigRecord({"content": '{"settings": {}}'}), "other": ConfigRecord()}, "unknown record 'other'"),
        ({TEXT: ConfigRecord({"content": '{"settings": {}}'}), ARRAYS: ConfigRecord()}, "packed into one"),
    ],
)
def test_malformed_messages_are_value_errors(records, match):
    with pytest.raises(ValueError, match=match):
        decode_message(RecordDict(records))


def test_a_task_must_be_text():
    records = RecordDict({TEXT: ConfigRecord({"content": '{"settings": {}, "question": 1}'})})
    with pytest.raises(ValueError, match="must be text"):
        decode_request(records)


@settings(max_examples=200, deadline=None)
@given(st.data())
def test_damaged_bytes_are_read_or_refused_but_nothing_else(data):
    whole = bytearray(encode_arrays({"a": np.arange(3.0), "b": np.array([True, False])})["packed"].data)
    for _ in range(data.draw(st.integers(1, 3))):
        whole[data.draw(st.integers(0, len(whole) - 1))] = data.draw(st.integers(0, 255))
    damaged = bytes(whole[: data.draw(st.integers(0, len(whole)))])
    try:
        found = decode_arrays(ArrayRecord({"packed": Array("uint8", (len(damaged),), "kinfed.packed", damaged)}))
    except ValueError:
        return
    assert all(array.dtype.kind in "fiub" for array in found.values())
