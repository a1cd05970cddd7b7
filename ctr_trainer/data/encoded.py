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
      cure: what in the feature spec may mend them, as the end of a message.
      weights: list<float32>, the weights of a bag's values; None where it has none.
      lengths: int[n], how many values each row of a list has, before a cut; None of what is no list.
      odd: a value that looks as if it were several, as `[1, 2]`; None where none was seen.
    """

    column: pa.Array
    bad: np.ndarray | None = None
    expected: str = ""
    weights: pa.Array | None = None
    lengths: np.ndarray | None = None
    odd: str | None = None
    cure: str = ""
