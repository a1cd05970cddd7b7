"""A classifier of clicks with the interface of scikit-learn."""

import os
from collections.abc import Mapping
from typing import Any

import numpy as np
import pyarrow as pa

from ctr_trainer.commands.click_model import ClickModel, as_table, refusing_mixed_columns, train
from ctr_trainer.system.messages.errors import UserError

try:
    from sklearn.base import BaseEstimator, ClassifierMixin
    from sklearn.utils.multiclass import type_of_target
    from sklearn.utils.validation import check_is_fitted
except ImportError:  # The class exists all the same, for `help(ctr_trainer)` and `import *`.
    BaseEstimator, ClassifierMixin = object, type("ClassifierMixin", (), {})


class ClickClassifier(ClassifierMixin, BaseEstimator):
    """A classifier of two classes for `Pipeline`, `cross_val_score` and `GridSearchCV` of scikit-learn.

    Args:
      model: name of a model, see `train`.
      epochs, batch_size, learning_rate, embedding_dim: flags of the command `train`; None for the value that is chosen
        from the data.
      seed: seed of the initial values and of the order of examples.
      settings: dict of further flags of `train`.
      model_dir: directory of the model, which must not contain a model yet; None for a temporary directory.

    Attributes:
      classes_: the two classes, in ascending order; the second one is the click.
      model_: the `ClickModel`.
      n_features_in_, feature_names_in_: the number of columns of `X` and, for a DataFrame, their names.
    """

    def __init__(
        self,
        model: str = "",
        epochs: int | None = None,
        batch_size: int | None = None,
        learning_rate: float | None = None,
        embedding_dim: int | None = None,
        seed: int = 1,
        settings: Mapping[str, Any] | None = None,
        model_dir: str | os.PathLike[str] | None = None,
    ) -> None:
        if BaseEstimator is object:
            raise UserError("ClickClassifier needs the package scikit-learn: pip install scikit-learn")
        self.model, self.epochs, self.batch_size, self.learning_rate = model, epochs, batch_size, learning_rate
        self.embedding_dim, self.seed, self.settings, self.model_dir = embedding_dim, seed, settings, model_dir

    def fit(self, X: Any, y: Any, eval_set: tuple[Any, Any] | None = None) -> "ClickClassifier":
        """Trains on a DataFrame or array `X`, [n, columns], and its classes `y`, [n].

        `eval_set` is (X, y) to decide when to stop; None for the choice of `train`.

        Raises:
          ValueError: `y` does not have two classes, that of `eval_set` has others, or `X` and `y` differ in length.
        """
        if type_of_target(y) != "binary" or len(found := np.unique(y)) != 2:
            raise ValueError(f"y has the target type {type_of_target(y)!r}: expected two classes")
        self.classes_ = found
        names = getattr(X, "columns", None)
        if names is not None:
            self.feature_names_in_ = np.array(names, object)
        given = ("epochs", "batch_size", "learning_rate", "embedding_dim")
        chosen = {name: value for name in given if (value := getattr(self, name)) is not None}
        table, label = self._table(X, y)
        self.n_features_in_ = table.num_columns - 1
        self.model_: ClickModel = train(
            table,
            label=label,
            model=self.model,
            model_dir=self.model_dir,
            eval_data=None if eval_set is None else self._table(*eval_set)[0],
            **{"seed": self.seed, **chosen, **(self.settings or {})},
        )
        return self

    def predict_proba(self, X: Any) -> np.ndarray:
        """Returns float64[n, 2], the probability of each class."""
        check_is_fitted(self)
        click = np.asarray(self.model_.predict(self._columns(X)), np.float64)
        return np.stack([1 - click, click], axis=1)

    def predict(self, X: Any) -> np.ndarray:
        """Returns [n], the more probable class of each row."""
        return self.classes_[(self.predict_proba(X)[:, 1] > 0.5).astype(int)]

    def _table(self, X: Any, y: Any) -> tuple[pa.Table, str]:
        """Returns (the table of `X` and its labels 0 and 1, the name of the label's column)."""
        table, classes = self._columns(X), np.asarray(y)
        if len(table) != len(classes):
            raise ValueError(f"X has {len(table)} rows, and y has {len(classes)}")
        if unknown := classes[~np.isin(classes, self.classes_)].tolist():
            raise ValueError(f"y has the class {unknown[0]!r}: expected one of {self.classes_.tolist()}")
        label = "click"
        while label in table.column_names:
            label += "_"
        return table.append_column(label, pa.array((classes == self.classes_[1]).astype(np.int8))), label

    def _columns(self, X: Any) -> pa.Table:
        """Returns the table of `X`; the columns of an array are named x0, x1 and so on."""
        if hasattr(X, "columns"):
            return as_table(X)
        if np.ndim(values := np.asarray(X)) != 2:
            raise UserError(
                f"X is {type(X).__name__}: expected a DataFrame or an array of 2 dimensions, such as X.toarray() of a "
                "sparse matrix"
            )
        with refusing_mixed_columns():
            return pa.table({f"x{number}": pa.array(column) for number, column in enumerate(values.T)})
