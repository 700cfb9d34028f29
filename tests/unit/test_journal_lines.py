"""One journal line: there and back, and every damage seen."""

from __future__ import annotations

import json
import zlib
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from garrison.records.journal import Entry, decode_line, encode_line

TEXT = st.text(max_size=30)
ENTRIES = st.builds(Entry, st.integers(), st.integers(), TEXT, TEXT, TEXT,
                    st.dictionaries(TEXT, st.none() | st.integers() | TEXT | st.lists(TEXT, max_size=2), max_size=3))
ONE = Entry(7, 2, "guardian-demo@r1#3", "2026-01-31T12:00:00.000000Z", "node", {"node": "a", "text": "größer 🦀\r\n"})


@given(ENTRIES)
def test_there_and_back(entry: Entry) -> None:
    line = encode_line(entry)
    assert line.endswith(b"\n") and line.count(b"\n") == 1 and b"\r" not in line
    assert decode_line(line) == entry


def test_a_line_is_json_with_its_checksum_last() -> None:
    line = encode_line(ONE)
    body = json.loads(line)
    assert list(body) == ["seq", "epoch", "schema", "token", "at", "kind", "data", "crc"]
    assert body["crc"] == f"{zlib.crc32(line[:line.rindex(b',')] + b'}'):08x}"
    assert "größer 🦀" in line.decode()


def test_undecodable_bytes_survive() -> None:
    entry = Entry(1, 1, "t", "at", "note", {"text": "caf\udce9"})
    assert encode_line(entry).decode("utf-8", errors="strict")
    assert decode_line(encode_line(entry)) == entry


def test_every_flipped_bit_is_detected() -> None:
    line = encode_line(ONE)
    for place in range(len(line)):
        for bit in range(8):
            damaged = bytearray(line)
            damaged[place] ^= 1 << bit
            try:
                found = decode_line(bytes(damaged))
            except ValueError:
                continue
            assert found == ONE, (place, bit)  # only the case of a checksum digit may differ


def test_every_cut_and_every_repetition_is_detected() -> None:
    line = encode_line(ONE)
    for place in range(len(line)):
        for damaged in (line[:place], line[:place] + b"\n", line[place + 1:], line + line[place:]):
            if damaged != line + line[:0]:
                with pytest.raises(ValueError, match=r"checksum|journal record"):
                    decode_line(damaged)


@pytest.mark.parametrize("body", [[], {}, "x", 7, None, {"seq": 1, "epoch": 1, "token": "t", "at": "a", "kind": "k"}])
def test_a_foreign_line_with_a_right_checksum(body: Any) -> None:
    raw = json.dumps(body).encode()
    if not isinstance(body, dict):
        raw += b"}"
    line = raw[:-1] + b',"crc":"%08x"}\n' % zlib.crc32(raw)
    with pytest.raises(ValueError, match=r"journal record|JSON|Extra data|Expecting"):
        decode_line(line)
