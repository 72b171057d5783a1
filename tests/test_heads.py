"""`Head`: the one address of an attention head."""

from __future__ import annotations

import copy
import dataclasses
import pickle

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headcount import Head, HeadcountError
from headcount.heads import asked_units, parse_heads, parse_units

kinds = st.sampled_from(["encoder", "decoder", "cross", "vision", "text"])
numbers = st.integers(min_value=0, max_value=999_999)


@given(kinds, numbers, numbers)
@settings(max_examples=30)
def test_what_is_written_is_read_again(kind, layer, index):
    head = Head(kind, layer, index)
    assert Head.parse(str(head)) == head
    assert str(head) == f"{kind}.{layer}.{index}"
    assert eval(repr(head), {"Head": Head}) == head
    assert head.site == f"{kind}.{layer}"


def test_heads_are_frozen_ordered_and_hashable():
    heads = [Head("encoder", 1, 0), Head("cross", 0, 10), Head("encoder", 0, 2), Head("cross", 0, 9)]
    assert [str(head) for head in sorted(heads)] == ["cross.0.9", "cross.0.10", "encoder.0.2", "encoder.1.0"]
    assert len({*heads, Head("encoder", 1, 0)}) == 4
    with pytest.raises(dataclasses.FrozenInstanceError):
        heads[0].layer = 3
    assert copy.deepcopy(heads) == heads == pickle.loads(pickle.dumps(heads))


@pytest.mark.parametrize(
    "text",
    [
        *("", "encoder", "encoder.1", "encoder.1.2.3", "encoder.-1.0", "encoder.1.x", "3.1.2", "encoder.1.1234567"),
        *("encoder.1.２", "encoder 1 2", None, 7, ["encoder.1.2"]),
    ],
)
def test_what_is_no_head_is_refused_with_an_example(text):
    with pytest.raises(HeadcountError, match=r"kind\.layer\.index.*encoder\.3\.5"):
        Head.parse(text)


def test_a_list_of_heads():
    expected = (Head("encoder", 3, 5), Head("cross", 0, 1))
    assert parse_heads("encoder.3.5, cross.0.1,") == expected
    assert parse_heads(["encoder.3.5", Head("cross", 0, 1)]) == expected
    assert parse_heads(iter(expected)) == expected
    assert parse_heads(expected[0]) == expected[:1]
    assert parse_heads("") == parse_heads([]) == ()


def test_the_same_head_twice_is_refused():
    with pytest.raises(HeadcountError, match=r"encoder\.3\.5 .*twice"):
        parse_heads("encoder.3.5,encoder.3.05")


@pytest.mark.parametrize("text", ["encoder_ffn.0.a", "encoder_ffn", "encoder.0.1-", "7"])
def test_what_is_no_unit_is_refused_with_all_ways_to_write_one(text):
    with pytest.raises(HeadcountError, match=r"is not a unit; write .* encoder_ffn\.3\.0-511, a sublayer as"):
        parse_units(text)


def test_a_range_with_a_huge_end_is_a_range():
    (span,) = parse_units("encoder_ffn.0.0-9999999999")
    assert span.last == 9_999_999_999


def test_what_is_no_kind_of_unit_is_named():
    with pytest.raises(HeadcountError, match="3 is not a kind of unit; choose units=… from heads, neurons, sublayers"):
        asked_units(3)
