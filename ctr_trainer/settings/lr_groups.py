"""Learning rates of their own for parts of the dense variables."""

import dataclasses
import math

from ctr_trainer.messages.errors import UserError


@dataclasses.dataclass(frozen=True)
class LrGroups:
    """A factor of the learning rate for each scope of variables, 1 for those in none; the longest scope counts.

    A variable is in the scope `mlp` if its name is `mlp` or starts with `mlp/`.

    Attributes:
      factors: (scope, factor) pairs.
    """

    factors: tuple[tuple[str, float], ...] = ()

    @classmethod
    def parse(cls, texts):
        """`["mlp:0.1", "linear:2"]` -> LrGroups; raises ValueError for what is none."""
        factors = {}
        for text in texts:
            scope, _, factor = text.rpartition(":")
            try:
                value = float(factor)
            except ValueError:
                value = math.nan
            if not scope or not 0 <= value < math.inf:
                raise ValueError("expected scope:factor, as mlp:0.1, the factor at least 0")
            if scope in factors:
                raise ValueError(f"{scope} has a factor already")
            factors[scope] = value
        return cls(tuple(factors.items()))

    def factors_of(self, variables):
        """-> the factor of each variable.

        Raises:
          UserError: a scope has no variable; names those that there are.
        """
        names = [variable.op.name for variable in variables]
        for scope, _ in self.factors:
            if not any(_is_in(name, scope) for name in names):
                scopes = sorted({"/".join(name.split("/")[:depth]) for name in names for depth in (1, 2)})
                raise UserError(
                    f"--lr_groups={scope}: no variable of the model is in it; there are {', '.join(scopes)}"
                )
        return [self._factor(name) for name in names]

    def _factor(self, name):
        found = [(len(scope), factor) for scope, factor in self.factors if _is_in(name, scope)]
        return max(found)[1] if found else 1.0


def _is_in(name, scope):
    return name == scope or name.startswith(f"{scope}/")
