"""DeepFM and DCN-v2 of FuxiCTR, composed of its layers as in its model zoo: https://github.com/reczoo/FuxiCTR.

Its package has the layers, the training loop and the regularizers, but not these two models, which are in its
repository. Widths, embeddings and the batch size equal our flagfiles; all else equals its configuration templates: no
dropout, Adam at 1e-3, a tenth of this rate after an epoch without a better validation AUC, and the end after two such
epochs. (With its batches of 10,000, the validation AUC is 0.007 lower.) Its loop gets batches of tensors, which its own
reader would make one row at a time.
"""

import logging
import pathlib
import tempfile

import numpy as np
import torch
from accuracy_torch import BATCH_SIZE, CROSS_LAYERS, DIM, HIDDEN_UNITS
from fuxictr.features import FeatureMap
from fuxictr.pytorch.layers import CrossNetV2, FactorizationMachine, FeatureEmbedding, MLP_Block
from fuxictr.pytorch.models import BaseModel
from fuxictr.pytorch.torch_utils import seed_everything
from torch import nn

LEARNING_RATE, EPOCHS = 1e-3, 100
NAME = "accuracy"  # The name of the data.


class DeepFM(BaseModel):
    """p = sigmoid(FM(x) + MLP(x))."""

    def __init__(self, features, **settings):
        super().__init__(features, **settings)
        self.embedding_layer = FeatureEmbedding(features, DIM)
        self.fm = FactorizationMachine(features)
        self.mlp = MLP_Block(features.sum_emb_out_dim(), list(HIDDEN_UNITS), output_dim=1)

    def forward(self, inputs):
        inputs = self.get_inputs(inputs)
        vectors = self.embedding_layer(inputs)
        logits = self.fm(inputs, vectors) + self.mlp(vectors.flatten(start_dim=1))
        return {"y_pred": self.output_activation(logits)}


class DCNv2(BaseModel):
    """p = sigmoid(w [CrossNetV2(x), MLP(x)])."""

    def __init__(self, features, **settings):
        super().__init__(features, **settings)
        width = features.sum_emb_out_dim()
        self.embedding_layer = FeatureEmbedding(features, DIM)
        self.crossnet = CrossNetV2(width, CROSS_LAYERS)
        self.parallel_dnn = MLP_Block(width, list(HIDDEN_UNITS))
        self.fc = nn.Linear(width + HIDDEN_UNITS[-1], 1)

    def forward(self, inputs):
        inputs = self.embedding_layer(self.get_inputs(inputs), flatten_emb=True)
        logits = self.fc(torch.cat([self.crossnet(inputs), self.parallel_dnn(inputs)], dim=-1))
        return {"y_pred": self.output_activation(logits)}


MODELS = {"deepfm": DeepFM, "dcn_v2": DCNv2}


class Batches:
    """A data generator for FuxiCTR: batches of the rows of a part, shuffled anew for each epoch if `shuffle`."""

    def __init__(self, columns, batch_size, shuffle):
        self._columns, self._batch_size, self._shuffle = columns, batch_size, shuffle
        self._rows = len(columns["label"])

    def __len__(self):
        return -(-self._rows // self._batch_size)

    def __iter__(self):
        order = torch.randperm(self._rows) if self._shuffle else torch.arange(self._rows)
        for rows in order.split(self._batch_size):
            yield {name: column[rows] for name, column in self._columns.items()}


def train(kind, arrays, l2, seed):
    """Returns the probabilities of the best epoch for the valid and the test part, float64[n] each."""
    torch.set_num_threads(1)
    logging.getLogger().setLevel(logging.WARNING)
    seed_everything(seed)
    parts = {part: _columns(arrays, part) for part in ("train", "valid", "test")}
    with tempfile.TemporaryDirectory(prefix="accuracy_fuxictr_") as directory:
        (pathlib.Path(directory) / NAME).mkdir()
        model = MODELS[kind](
            _features(arrays, directory),
            embedding_regularizer=l2,
            model_root=directory,
            metrics=["AUC"],
            verbose=0,
        )
        model.compile("adam", "binary_crossentropy", LEARNING_RATE)
        model.reset_parameters()
        valid, test = (Batches(parts[part], BATCH_SIZE, shuffle=False) for part in ("valid", "test"))
        model.fit(Batches(parts["train"], BATCH_SIZE, shuffle=True), epochs=EPOCHS, validation_data=valid)
        return model.predict(valid), model.predict(test)


def _features(arrays, directory):
    """Returns the FeatureMap of the columns of `_columns`."""
    features = FeatureMap(NAME, directory)
    category = {"source": "", "padding_idx": 0}
    for at, size in enumerate(arrays["sizes"]):
        features.features[f"id{at}"] = {"type": "categorical", "vocab_size": int(size), **category}
    mean = {"type": "sequence", "feature_encoder": "layers.MaskedAveragePooling()", **category}
    for name in _bags(arrays):
        length = arrays[f"train/bag/{name}"].shape[1]
        features.features[name] = {"vocab_size": int(arrays[f"sizes/{name}"]), "max_len": length, **mean}
    for at in range(arrays["train/dense"].shape[1]):
        features.features[f"dense{at}"] = {"type": "numeric", "source": ""}
    features.labels = ["label"]
    features.num_fields = features.get_num_fields()
    features.default_emb_dim = DIM
    return features


def _columns(arrays, part):
    columns = {f"id{at}": column.astype(np.int64) for at, column in enumerate(arrays[f"{part}/ids"].T)}
    columns |= {name: arrays[f"{part}/bag/{name}"].astype(np.int64) for name in _bags(arrays)}
    columns |= {f"dense{at}": column for at, column in enumerate(arrays[f"{part}/dense"].T)}
    columns["label"] = arrays[f"{part}/labels"]
    return {name: torch.from_numpy(np.ascontiguousarray(column)) for name, column in columns.items()}


def _bags(arrays):
    return [name.removeprefix("sizes/") for name in arrays if name.startswith("sizes/")]
