"""The JSON of an answer, without a server."""

import json

import numpy as np
import pytest

from ctr_trainer.serving.scoring import answers
from ctr_trainer.serving.scoring.raw_inputs import PredictionFailed


def test_an_answer_of_numbers_gives_each_float32_back_and_refuses_what_is_not_finite():
    values = np.float32([0.0, 1.0, 1 / 3, 1e-30, -2.5e10, np.nextafter(np.float32(0.1), np.float32(1))])
    for outputs in ({"p%": values}, {"logits": values, "p": values[::-1].copy()}):
        found = json.loads(answers.predictions(outputs, of_rows=True))["predictions"]
        for name, expected in outputs.items():
            given = [each[name] if len(outputs) > 1 else each for each in found]
            assert all(type(value) is float for value in given)
            np.testing.assert_array_equal(np.float32(given), expected)
    with pytest.raises(PredictionFailed, match="not a finite number"):
        answers.predictions({"p": np.float32([0.5, np.nan])}, of_rows=True)
