"""Which group each example of a batch is in, for the grouped AUC."""

import numpy as np
import pyarrow as pa
import tensorflow as tf

from ctr_trainer.features.hashing import keys
from ctr_trainer.messages.errors import UserError, did_you_mean

_SLOT = "group"


class ExampleGroups:
    """Reads a feature or id column as int64 groups: keys and integers as they are, anything else by its hash.

    A missing value is a group of its own.

    Args:
      inputs: the `GraphInput`.
      name: of an id column or a single-valued sparse feature, or of one of the features of a `tf.data.Dataset`.

    Attributes:
      fetch: the tensor to run along with the step, or None where the batch itself has the column.

    Raises:
      UserError: there is none of that name; says which there are.
    """

    def __init__(self, inputs, name):
        self.fetch, self._column = None, None
        if not inputs.fed:
            offered = list(inputs.features) if isinstance(inputs.features, dict) else []
            if name in offered:
                self.fetch = tf.reshape(inputs.features[name], [-1])
        else:
            spec = inputs.features.spec
            places = {f.name: (t.name, at) for t in spec.tables for at, f in enumerate(t.single)}
            offered = list(dict.fromkeys([*spec.ids, *places]))
            if name in spec.ids:
                self._column = lambda batch: batch.ids[name]
            elif name in places:
                table, at = places[name]
                self._column = lambda batch: batch.keys[table][:, at]
        if name not in offered:
            raise UserError(
                f"no column {name!r} to group by: it must be an id column or a single-valued sparse feature, of which "
                f"there are {', '.join(offered) or 'none'}{did_you_mean(name, offered)}"
            )

    def of(self, batch, fetched):
        """-> int64[B].

        Args:
          batch: the `Batch` of the step; None for a `tf.data.Dataset`.
          fetched: the value of `fetch`.
        """
        values = fetched if self._column is None else self._column(batch)
        if np.issubdtype(values.dtype, np.integer):
            return values.astype(np.int64)
        return keys(_SLOT, pa.array(values))
