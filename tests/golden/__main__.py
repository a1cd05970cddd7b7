import pathlib
import sys
import tempfile

from ctr_trainer.models.registry import MODELS
from tests import golden
from tests.models import every


def record(name, data, model_dir):
    """Trains a model's variant and returns the losses."""
    estimator, losses = golden.make_estimator(name, model_dir)
    estimator.train(lambda: golden.reader(name, data), hooks=[losses], max_steps=golden.STEPS)
    return losses.values


def main(models):
    """Records the losses of the models."""
    with tempfile.TemporaryDirectory() as directory:
        directory = pathlib.Path(directory)
        data = golden.make_data(directory / "data")
        for model in models:
            names = every.variants(model)
            golden.save(model, {name: record(name, data, directory / name) for name in names})
            print(golden.path(model))


main(sys.argv[1:] or MODELS)
