import numpy as np
import pytest

from ctr_trainer.embedding.store.row_codec import CODECS, PLAIN, find_codec
from ctr_trainer.messages.errors import UserError
from ctr_trainer.settings.embedding_config import EmbeddingConfig
from ctr_trainer.settings.setting import declared

_ROWS = np.float32([[1, 1 / 3], [-2, 0], [0, 0]])
_EACH = pytest.mark.parametrize("codec", CODECS.values(), ids=CODECS)


def test_codecs_are_found_by_the_names_that_the_flag_takes():
    assert declared(EmbeddingConfig.__dataclass_fields__["sync_compression"]).choices == tuple(CODECS)
    assert [find_codec(name).name for name in CODECS] == ["none", "fp16"]
    assert find_codec(EmbeddingConfig().sync_compression) is PLAIN


def test_a_codec_that_is_none_of_those_there_are_is_refused():
    with pytest.raises(UserError, match="sync_compression 'fp8' is not one of none, fp16: give one of these"):
        find_codec("fp8")


@_EACH
@pytest.mark.parametrize("rows", [_ROWS, _ROWS[:0], np.asfortranarray(_ROWS)], ids=["some", "none", "by_column"])
def test_rows_come_back_as_they_went_or_rounded(codec, rows):
    encoded = codec.encode(rows)
    dtype, columns = codec.schema(2)
    assert encoded.dtype == dtype
    assert encoded.shape == (len(rows), columns)
    decoded = codec.decode(encoded)
    assert decoded.dtype == np.float32
    assert decoded.flags.c_contiguous
    third = np.float32(1 / 3) if codec.is_exact else np.float32(np.float16(1 / 3))
    np.testing.assert_array_equal(decoded, np.float32([[1, third], [-2, 0], [0, 0]])[: len(rows)])


@_EACH
def test_rows_of_a_message_that_lie_at_an_odd_byte_are_decoded(codec):
    encoded = codec.encode(_ROWS)
    raw = np.frombuffer(b"." + encoded.tobytes(), encoded.dtype, offset=1).reshape(encoded.shape)
    assert not raw.flags.aligned
    np.testing.assert_array_equal(codec.decode(raw), codec.decode(encoded))


def test_the_plain_codec_copies_nothing():
    assert PLAIN.encode(_ROWS) is _ROWS
    assert PLAIN.decode(_ROWS) is _ROWS


def test_bytes_of_a_row_of_17_floats():
    sizes = {name: codec.encode(np.zeros((1, 17), np.float32)).nbytes for name, codec in CODECS.items()}
    assert sizes == {"none": 17 * 4, "fp16": (1 + 17) * 2}
