"""What one source column became."""

import dataclasses

import numpy as np
import pyarrow as pa


@dataclasses.dataclass
class Encoded:
    """A column of the data set and what is wrong with it.

    Attributes:
      column: pyarrow Array of n rows.
      bad: bool[n], the rows that cannot be used; None for none.
      expected: what those should have been, as `a finite number`.
      weights: list<float32>, the weights of a bag's values; None where it has none.
    """

    column: pa.Array
    bad: np.ndarray | None = None
    expected: str = ""
    weights: pa.Array | None = None
