"""Trains FuxiCTR's models, built from its layers by the equations of its model zoo; prints a JSON line per seed.

The FuxiCTR package (https://github.com/reczoo/FuxiCTR) has the layers, the training loop and the regularizers; only its
repository has the models. Widths, embeddings and the batch size equal those in our flagfiles. All other settings equal
FuxiCTR's configuration templates: no dropout, Adam at 1e-3, a tenth of this rate after an epoch without a better
validation AUC, and the end after two such epochs. (With FuxiCTR's batches of 10,000, the validation AUC is 0.007
lower.) Its training loop gets complete batches of tensors; its own reader would build them row by row.

    python benchmarks/accuracy_fuxictr.py ARRAYS MODEL L2 SEED...

ARRAYS is a file from `accuracy_data.export_arrays`. The part `bars` of `model_quality.py` runs this program with
--peer_python. The program does not import this project.
"""

import json
import logging
import pathlib
import sys
import tempfile
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch
from fuxictr.features import FeatureMap
from fuxictr.pytorch import layers
from fuxictr.pytorch.models import BaseModel
from fuxictr.pytorch.torch_utils import seed_everything
from sklearn.metrics import log_loss, roc_auc_score
from torch import Tensor, nn

DIM, HIDDEN_UNITS, CROSS_LAYERS, BATCH_SIZE = 16, (256, 128, 64), 3, 2048
LEARNING_RATE, EPOCHS = 1e-3, 100
NAME = "accuracy"  # The name of the data.
# The defaults of our models.
CIN_UNITS, HEADS, HEAD_DIM, ATTENTION_LAYERS, SENET_REDUCTION = (64, 64), 2, 16, 3, 3
BLOCKS, BLOCK_UNITS, GATE_UNITS = 3, 64, 64

Inputs = dict[str, Tensor]
# f(inputs, embeddings e, e as float32[B, F * DIM]) -> logits.
Logits = Callable[[Inputs, Tensor, Tensor], Tensor]
Arrays = dict[str, np.ndarray]  # A file from `accuracy_data.export_arrays`.


class Model(BaseModel):
    """p = sigmoid(logits(x, e)), where x are the features of a batch and e their embeddings, float32[B, F, DIM]."""

    def __init__(self, kind: str, features: FeatureMap, **settings: Any) -> None:
        super().__init__(features, **settings)
        self.embedding_layer = layers.FeatureEmbedding(features, DIM)
        parts, self.logits = MODELS[kind](features, features.num_fields, features.sum_emb_out_dim())
        self.parts = nn.ModuleList(parts)

    def forward(self, inputs: Inputs) -> Inputs:
        inputs = self.get_inputs(inputs)
        vectors = self.embedding_layer(inputs)
        return {"y_pred": self.output_activation(self.logits(inputs, vectors, vectors.flatten(start_dim=1)))}


def mlp(width: int) -> nn.Module:
    """Returns the hidden layers with a scalar output."""
    return layers.MLP_Block(width, list(HIDDEN_UNITS), output_dim=1)


# The modules of a model, and the function of its logits, for F fields whose embeddings have F * DIM elements in total.
Built = tuple[list[nn.Module], Logits]


def deepfm(features: FeatureMap, fields: int, width: int) -> Built:
    """p = sigmoid(FM(x) + MLP(x))."""
    fm, deep = layers.FactorizationMachine(features), mlp(width)
    return [fm, deep], lambda x, e, flat: fm(x, e) + deep(flat)


def dcn_v2(features: FeatureMap, fields: int, width: int) -> Built:
    """p = sigmoid(w [CrossNetV2(x), MLP(x)])."""
    cross, deep = layers.CrossNetV2(width, CROSS_LAYERS), layers.MLP_Block(width, list(HIDDEN_UNITS))
    out = nn.Linear(width + HIDDEN_UNITS[-1], 1)
    return [cross, deep, out], lambda x, e, flat: out(torch.cat([cross(flat), deep(flat)], dim=-1))


def xdeepfm(features: FeatureMap, fields: int, width: int) -> Built:
    """p = sigmoid(LR(x) + CIN(e) + MLP(e))."""
    lr, cin = layers.LogisticRegression(features, use_bias=False), layers.CompressedInteractionNet(fields, [*CIN_UNITS])
    deep = mlp(width)
    return [lr, cin, deep], lambda x, e, flat: lr(x) + cin(e) + deep(flat)


class Interacting(nn.Module):
    """relu(attention(x) + W x), with several heads and no scale."""

    def __init__(self, width: int) -> None:
        super().__init__()
        out = HEADS * HEAD_DIM
        self.query, self.key, self.value, self.rest = (nn.Linear(width, out, bias=False) for _ in range(4))
        self.attention = layers.ScaledDotProductAttention()

    def forward(self, x: Tensor) -> Tensor:
        projections = self.query, self.key, self.value
        parts = (layer(x).unflatten(-1, (HEADS, HEAD_DIM)).transpose(1, 2) for layer in projections)
        return (self.attention(*parts)[0].transpose(1, 2).flatten(start_dim=2) + self.rest(x)).relu()


def autoint(features: FeatureMap, fields: int, width: int) -> Built:
    """p = sigmoid(w attention(e) + MLP(e))."""
    attention = nn.Sequential(*map(Interacting, [DIM, *[HEADS * HEAD_DIM] * (ATTENTION_LAYERS - 1)]))
    out, deep = nn.Linear(fields * HEADS * HEAD_DIM, 1), mlp(width)
    return [attention, out, deep], lambda x, e, flat: out(attention(e).flatten(start_dim=1)) + deep(flat)


class PairMatrices(layers.BilinearInteractionV2):
    """FuxiCTR's layer with a matrix per pair, as one product per pair; the original copies all matrices per example."""

    def forward(self, vectors: Tensor) -> Tensor:
        left, right = (vectors.index_select(1, fields) for fields in self.triu_index)
        return torch.einsum("bpd,pde->bpe", left, self.bilinear_W) * right


def fibinet(features: FeatureMap, fields: int, width: int) -> Built:
    """p = sigmoid(LR(x) + MLP([bilinear(e), bilinear(senet(e))]))."""
    lr = layers.LogisticRegression(features, use_bias=False)
    senet = layers.SqueezeExcitation(fields, SENET_REDUCTION, "ReLU")
    plain, weighted = (PairMatrices(fields, DIM, "field_interaction") for _ in range(2))
    deep = mlp(fields * (fields - 1) * DIM)

    def logits(x: Inputs, e: Tensor, flat: Tensor) -> Tensor:
        return lr(x) + deep(torch.cat([plain(e), weighted(senet(e))], dim=1).flatten(start_dim=1))

    return [lr, senet, plain, weighted, deep], logits


class MaskBlock(nn.Module):
    """relu(norm(W (mask * x))), where mask = W_2 relu(W_1 e)."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.mask = nn.Sequential(nn.Linear(width, width), nn.ReLU(), nn.Linear(width, width))
        self.out = nn.Sequential(nn.Linear(width, BLOCK_UNITS, bias=False), nn.LayerNorm(BLOCK_UNITS), nn.ReLU())

    def forward(self, context: Tensor, x: Tensor) -> Tensor:
        return self.out(self.mask(context) * x)


def masknet(features: FeatureMap, fields: int, width: int) -> Built:
    """p = sigmoid(MLP([block_i(e, norm(e))])), the parallel MaskNet."""
    norms, blocks = [nn.LayerNorm(DIM) for _ in range(fields)], [MaskBlock(fields * DIM) for _ in range(BLOCKS)]
    deep = mlp(BLOCKS * BLOCK_UNITS)

    def logits(x: Inputs, e: Tensor, flat: Tensor) -> Tensor:
        normed = torch.cat([norm(e[:, at]) for at, norm in enumerate(norms)], dim=1)
        return deep(torch.cat([block(flat, normed) for block in blocks], dim=1))

    return [*norms, *blocks, deep], logits


class Stream(nn.Module):
    """MLP(2 sigmoid(MLP(context)) * e), where the context is a learned vector."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.context = nn.Parameter(torch.zeros(1, DIM))
        self.gate = layers.MLP_Block(DIM, [GATE_UNITS], output_dim=width, output_activation="Sigmoid")
        self.mlp = layers.MLP_Block(width, list(HIDDEN_UNITS))

    def forward(self, x: Tensor) -> Tensor:
        return self.mlp(2 * self.gate(self.context) * x)


class Fusion(nn.Module):
    """w_1 o_1 + w_2 o_2 + o_1' W o_2."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.of_first, self.of_second = nn.Linear(width, 1), nn.Linear(width, 1)
        # FuxiCTR's parameter has the shape [width * width, 1], for which this is Xavier's standard deviation.
        self.both = nn.Parameter(torch.empty(width, width).normal_(std=(2 / (width * width + 1)) ** 0.5))

    def forward(self, first: Tensor, second: Tensor) -> Tensor:
        return self.of_first(first) + self.of_second(second) + ((first @ self.both) * second).sum(dim=1, keepdim=True)


def final_mlp(features: FeatureMap, fields: int, width: int) -> Built:
    """p = sigmoid(fusion(o_1, o_2)), where o_i is the output of stream i."""
    first, second, fusion = Stream(width), Stream(width), Fusion(HIDDEN_UNITS[-1])
    return [first, second, fusion], lambda x, e, flat: fusion(first(flat), second(flat))


def pnn(features: FeatureMap, fields: int, width: int) -> Built:
    """p = sigmoid(MLP([e, <e_i, e_j>]))."""
    products = layers.InnerProductInteraction(fields, output="inner_product")
    deep = mlp(fields * DIM + fields * (fields - 1) // 2)
    return [products, deep], lambda x, e, flat: deep(torch.cat([flat, products(e)], dim=1))


BUILDERS = (deepfm, dcn_v2, xdeepfm, autoint, fibinet, masknet, final_mlp, pnn)
MODELS = {build.__name__: build for build in BUILDERS}


class Batches:
    """A data generator for FuxiCTR: batches of a part's rows, shuffled in each epoch if `shuffle` is true."""

    def __init__(self, columns: dict[str, Tensor], shuffle: bool) -> None:
        self._columns, self._shuffle, self._rows = columns, shuffle, len(columns["label"])

    def __len__(self) -> int:
        return -(-self._rows // BATCH_SIZE)

    def __iter__(self) -> Iterator[dict[str, Tensor]]:
        order = torch.randperm(self._rows) if self._shuffle else torch.arange(self._rows)
        for rows in order.split(BATCH_SIZE):
            yield {name: column[rows] for name, column in self._columns.items()}


def train(kind: str, arrays: Arrays, l2: float, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Trains, and returns the probabilities of the best epoch for the parts valid and test, float64[n] each."""
    torch.set_num_threads(1)
    logging.getLogger().setLevel(logging.WARNING)
    seed_everything(seed)
    parts = {part: _columns(arrays, part) for part in ("train", "valid", "test")}
    with tempfile.TemporaryDirectory(prefix="accuracy_fuxictr_") as directory:
        (pathlib.Path(directory) / NAME).mkdir()
        features, own = _features(arrays, directory), {"embedding_regularizer": l2, "model_root": directory}
        model = Model(kind, features, metrics=["AUC"], verbose=0, **own)
        model.compile("adam", "binary_crossentropy", LEARNING_RATE)
        model.reset_parameters()
        valid, test = (Batches(parts[part], shuffle=False) for part in ("valid", "test"))
        model.fit(Batches(parts["train"], shuffle=True), epochs=EPOCHS, validation_data=valid)
        return model.predict(valid), model.predict(test)


def _features(arrays: Arrays, directory: str) -> FeatureMap:
    """Returns the FeatureMap of the columns from `_columns`."""
    features = FeatureMap(NAME, directory)
    for name in _names(arrays):
        length, size = arrays[f"train/ids/{name}"].shape[1], int(arrays[f"sizes/{name}"])
        mean = {"type": "sequence", "feature_encoder": "layers.MaskedAveragePooling()", "max_len": length}
        kind = mean if length > 1 else {"type": "categorical"}
        features.features[name] = {"vocab_size": size, "source": "", "padding_idx": 0, **kind}
    for at in range(arrays["train/dense"].shape[1]):
        features.features[f"dense{at}"] = {"type": "numeric", "source": ""}
    features.labels = ["label"]
    features.num_fields = features.get_num_fields()
    features.default_emb_dim = DIM
    return features


def _columns(arrays: Arrays, part: str) -> dict[str, Tensor]:
    columns = {name: arrays[f"{part}/ids/{name}"].astype(np.int64) for name in _names(arrays)}
    columns = {name: ids if ids.shape[1] > 1 else ids[:, 0] for name, ids in columns.items()}
    columns |= {f"dense{at}": column for at, column in enumerate(arrays[f"{part}/dense"].T)}
    columns["label"] = arrays[f"{part}/labels"]
    return {name: torch.from_numpy(np.ascontiguousarray(column)) for name, column in columns.items()}


def _names(arrays: Arrays) -> list[str]:
    return [name.removeprefix("sizes/") for name in arrays if name.startswith("sizes/")]


def main() -> None:
    file, model, l2, *seeds = sys.argv[1:]
    with np.load(file) as archive:
        arrays = dict(archive)
    for seed in map(int, seeds):
        valid, test = train(model, arrays, float(l2), seed)
        found = {
            "auc": float(roc_auc_score(arrays["test/labels"], test)),
            "logloss": float(log_loss(arrays["test/labels"], np.clip(test.astype(np.float64), 1e-7, 1 - 1e-7))),
            "valid": float(roc_auc_score(arrays["valid/labels"], valid)),
        }
        print(json.dumps({"seed": seed, "setting": float(l2), **found}), flush=True)


if __name__ == "__main__":
    main()
