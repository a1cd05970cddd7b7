"""A byte of a data file that has changed on the disk."""

import pyarrow.parquet as pq
import pytest

from ctr_trainer.data.convert import convert
from ctr_trainer.data.dataset import open_dataset
from ctr_trainer.data.reader import BatchReader
from ctr_trainer.messages.errors import UserError
from tests.data.make import SPEC, make_rows


def test_a_flipped_byte_is_named_with_its_file_and_row_group(tmp_path):
    data = make_rows(tmp_path, 50)
    name = open_dataset(data).files[1]["name"]
    with pq.ParquetFile(data / name) as file:
        names = file.schema_arrow.names
        column = file.metadata.row_group(2).column(names.index("x"))
    content = bytearray((data / name).read_bytes())
    content[column.data_page_offset + column.total_compressed_size - 1] ^= 1
    (data / name).write_bytes(content)
    pq.read_table(data / name)  # the values are others, and nothing tells so without the checksums
    with pytest.raises(UserError, match=f"{name}: row group 2 cannot be read: .*; convert the data again"):
        list(BatchReader(data, 8, epochs=1))
    with pytest.raises(UserError, match=f"{name}: cannot be read after row 0: "):
        convert("parquet", data / name, tmp_path / "out", SPEC.without_labels(), progress=False)
