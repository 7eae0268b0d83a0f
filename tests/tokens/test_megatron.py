import io
import struct

import numpy as np
import pytest

from archsearch.config import ConfigError, Where
from archsearch.tokens.megatron import documents, dtype_for, read_index, write_index

HERE = Where("x.idx")


def index_bytes(lengths, pointers, bounds, code=8, magic=b"MMIDIDX\x00\x00", version=1, more=b""):
    """Write the format byte by byte, from its description alone."""
    content = magic + version.to_bytes(8, "little") + bytes([code])
    content += len(lengths).to_bytes(8, "little") + len(bounds).to_bytes(8, "little")
    content += b"".join(struct.pack("<i", x) for x in lengths)
    content += b"".join(struct.pack("<q", x) for x in pointers)
    return content + b"".join(struct.pack("<q", x) for x in bounds) + more


@pytest.fixture
def read(tmp_path):
    def read(content):
        (tmp_path / "x.idx").write_bytes(content)
        return read_index(tmp_path / "x.idx")

    return read


def test_the_written_index_is_the_format_byte_by_byte():
    file = io.BytesIO()
    write_index(file, np.dtype(np.int32), np.array([3, 1, 70000]))
    assert file.getvalue() == index_bytes([3, 1, 70000], [0, 12, 16], [0, 1, 2, 3], code=4)


@pytest.mark.parametrize(
    ("code", "dtype"), [(1, "uint8"), (2, "int8"), (3, "int16"), (4, "int32"), (5, "int64"), (8, "uint16")]
)
def test_an_index_is_read_in_every_integer_dtype(read, code, dtype):
    size = np.dtype(dtype).itemsize
    index = read(index_bytes([3, 5], [0, 3 * size], [0, 1, 2], code=code))
    assert index.dtype == dtype
    assert index.bin_bytes == 8 * size
    starts, lengths = documents(index, HERE)
    assert (starts.tolist(), lengths.tolist()) == ([0, 3], [3, 5])


def test_a_document_may_be_several_sequences_or_none(read):
    index = read(index_bytes([3, 5, 2], [0, 6, 16], [0, 2, 2, 3]))
    starts, lengths = documents(index, HERE)
    assert lengths.tolist() == [8, 0, 2]
    assert starts[[0, 2]].tolist() == [0, 8]


def test_documents_may_lie_apart_and_in_any_order(read):
    starts, lengths = documents(read(index_bytes([3, 2], [10, 0], [0, 1, 2])), HERE)
    assert (starts.tolist(), lengths.tolist()) == ([5, 0], [3, 2])


def test_modes_of_multimodal_files_are_ignored(read):
    assert documents(read(index_bytes([3, 2], [0, 6], [0, 1, 2], more=b"\x00\x01")), HERE)[1].tolist() == [3, 2]


def test_offsets_are_64_bits_wide(read):
    n = 2**31 - 1
    starts, lengths = documents(read(index_bytes([n, n, n], [0, 2 * n, 4 * n], [0, 2, 3])), HERE)
    assert starts.tolist() == [0, 2 * n]
    assert lengths.tolist() == [2 * n, n]


def test_the_dtype_is_the_one_that_megatron_takes():
    assert [dtype_for(size).name for size in (257, 65499, 65500, 100352)] == ["uint16", "uint16", "int32", "int32"]


def test_a_document_that_the_format_cannot_hold_is_refused():
    with pytest.raises(ValueError, match=r"fewer than 2\^31 tokens; got 2,147,483,648"):
        write_index(io.BytesIO(), np.dtype(np.uint16), np.array([2**31]))


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "is no Megatron index: must have at least 34 bytes; got 0"),
        (index_bytes([3], [0], [0, 1], magic=b"MMIDIDX\x00\x01"), "must begin with b'MMIDIDX"),
        (index_bytes([3], [0], [0, 1], version=2), "version: must be 1; got 2"),
        (index_bytes([3], [0], [0, 1], code=7), "dtype code: must be one of 1 uint8, .*; got 7"),
        (index_bytes([3], [0], [0, 1], code=99), "dtype code: .*; got 99"),
        (index_bytes([3, 2], [0, 6], [0, 1, 2])[:-5], "2 sequences and 3 document bounds need 82 bytes; got 77"),
        (index_bytes([-3], [0], [0, 1]), "lengths must be at least 0"),
        (index_bytes([3], [1], [0, 1]), "pointers multiples of 2"),
        (index_bytes([3], [0], [0, 2]), "document bounds must rise from 0 to 1"),
        (index_bytes([3, 2], [0, 6], [0, 2, 1, 2]), "document bounds must rise from 0 to 2"),
        (index_bytes([3], [0], []), "document bounds must rise"),
    ],
)
def test_what_is_no_index_is_refused(read, content, message):
    with pytest.raises(ConfigError, match=r"x\.idx: .*" + message):
        read(content)


def test_a_document_with_a_gap_inside_is_refused(read):
    with pytest.raises(ConfigError, match=r"x\.idx: the sequences of a document must follow one another; sequence 1"):
        documents(read(index_bytes([3, 2], [0, 8], [0, 2])), HERE)
