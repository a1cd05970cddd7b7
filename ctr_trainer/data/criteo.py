"""The `criteo` format: the display-advertising challenge's TSV."""

from ctr_trainer.data import delimited
from ctr_trainer.features.spec import CsvFormat

DENSE = tuple(f"I{i}" for i in range(1, 14))
SPARSE = tuple(f"C{i}" for i in range(1, 27))
COLUMNS = ("label", *DENSE, *SPARSE)

_FORM = CsvFormat(delimiter="\t", header=False, columns=COLUMNS, quote="")


def read(source, spec, bad_rows, time=None):
    """Yields CsvBlocks of `COLUMNS`. The files have no header and no quotes; tabs separate, an empty field is missing.

    If the spec is unlabelled, the files may be those of the challenge's test set, which have no label.
    """
    form = delimited.form_of(source, _FORM, spec)
    return delimited.blocks(source, form, spec, time)
