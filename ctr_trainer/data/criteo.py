"""The `criteo` format: the display-advertising challenge's TSV."""

from ctr_trainer.data import delimited
from ctr_trainer.features.spec import CsvFormat

DENSE = tuple(f"I{i}" for i in range(1, 14))
SPARSE = tuple(f"C{i}" for i in range(1, 27))
COLUMNS = ("label", *DENSE, *SPARSE)

_FORM = CsvFormat(delimiter="\t", header=False, columns=COLUMNS)


def read(source, spec, bad_rows, time=None):
    """Yields Chunks of `COLUMNS`: no header, tab-separated, an empty field is a missing value, no quoting."""
    return delimited.stream(source, _FORM, bad_rows, quote=False)
