"""DeepFM, DCN-v2 and Wide & Deep in PyTorch, as in the papers, with the widths of our flagfiles.

Embeddings of 16, hidden layers 256, 128 and 64 with ReLU and dropout 0.1, Adam at 1e-3 with batches of 2048, up to 15
epochs; the epoch with the best validation AUC counts, and training ends after 3 epochs without a better one. L2 on all
embeddings. All features are in one table; id 0 is a vector of zeros. A bag is the mean of its values.
"""

import copy

import numpy as np
import torch
from torch import nn

DIM, HIDDEN_UNITS, CROSS_LAYERS = 16, (256, 128, 64), 3
DROPOUT, LEARNING_RATE, BATCH_SIZE, EPOCHS, PATIENCE = 0.1, 1e-3, 2048, 15, 3
PREDICTED = 16384  # Rows of a batch.


class Model(nn.Module):
    """p = sigmoid(model(ids, bags, dense)), for `total` ids, `fields` embedded features and `dense` numbers."""

    def __init__(self, kind, total, fields, dense):
        super().__init__()
        self.kind = kind
        self.embedding = nn.Embedding(total, DIM, padding_idx=0)
        self.linear = nn.Embedding(total, 1, padding_idx=0)
        nn.init.normal_(self.embedding.weight, std=0.01)
        nn.init.zeros_(self.linear.weight)
        with torch.no_grad():
            self.embedding.weight[0] = 0
        self.dense = nn.Linear(dense, 1) if dense else None
        width = inputs = fields * DIM + dense
        layers = []
        for units in HIDDEN_UNITS:
            layers += [nn.Linear(inputs, units), nn.ReLU(), nn.Dropout(DROPOUT)]
            inputs = units
        self.mlp = nn.Sequential(*layers)
        self.cross = nn.ModuleList(nn.Linear(width, width) for _ in range(CROSS_LAYERS if kind == "dcn_v2" else 0))
        self.out = nn.Linear(inputs + (width if kind == "dcn_v2" else 0), 1)

    def forward(self, ids, bags, dense):
        """Maps int64[B, F], [int64[B, N], ...], float32[B, n] to logits float32[B]."""
        vectors = torch.cat([self.embedding(ids), *(_mean(self.embedding, bag)[:, None] for bag in bags)], 1)
        inputs = torch.cat([vectors.flatten(1), dense], 1)
        deep = self.mlp(inputs)
        if self.kind == "dcn_v2":
            crossed = inputs
            for layer in self.cross:
                crossed = inputs * layer(crossed) + crossed
            return self.out(torch.cat([crossed, deep], 1))[:, 0]
        logits = self.out(deep) + self.linear(ids).sum(1)
        logits = logits + sum(_mean(self.linear, bag) for bag in bags)
        if self.dense:
            logits = logits + self.dense(dense)
        if self.kind == "deepfm":
            squares = vectors.sum(1).square() - vectors.square().sum(1)
            logits = logits + 0.5 * squares.sum(1, keepdim=True)
        return logits[:, 0]

    def l2(self):
        """Returns half the sum of the squares of all embeddings."""
        return 0.5 * (self.embedding.weight.square().sum() + self.linear.weight.square().sum())


def _mean(table, bag):
    counts = (bag > 0).sum(1, keepdim=True).clamp(min=1)
    return table(bag).sum(1) / counts


def train(kind, arrays, l2, seed):
    """Returns the probabilities of the best epoch for the valid and the test part, float32[n] each."""
    torch.set_num_threads(1)
    torch.manual_seed(seed)
    parts = {part: _tensors(arrays, part) for part in ("train", "valid", "test")}
    ids, bags, dense, labels = parts["train"]
    total = 1 + sum(size for size in [*arrays["sizes"], *(arrays[n] for n in arrays if n.startswith("sizes/"))])
    model = Model(kind, int(total), ids.shape[1] + len(bags), dense.shape[1])
    optimizer = torch.optim.Adam(model.parameters(), lr=LEARNING_RATE)
    best, best_model, since = -1.0, None, 0
    for _ in range(EPOCHS):
        for rows in torch.randperm(len(labels)).split(BATCH_SIZE):
            logits = model(ids[rows], [bag[rows] for bag in bags], dense[rows])
            loss = nn.functional.binary_cross_entropy_with_logits(logits, labels[rows])
            optimizer.zero_grad()
            (loss + l2 * model.l2() if l2 else loss).backward()
            optimizer.step()
        auc = _auc(arrays["valid/labels"], _predict(model, parts["valid"]))
        since += 1
        if auc > best:
            best, best_model, since = auc, copy.deepcopy(model.state_dict()), 0
        if since == PATIENCE:
            break
    model.load_state_dict(best_model)
    return _predict(model, parts["valid"]), _predict(model, parts["test"])


def _tensors(arrays, part):
    """Returns (ids, bags, dense, labels), with one numbering of the ids of all features."""
    offset, ids, bags = 0, [], []
    for column, size in zip(arrays[f"{part}/ids"].T.astype(np.int64), arrays["sizes"], strict=True):
        ids.append(np.where(column > 0, column + offset, 0))
        offset += int(size)
    for name in [name.removeprefix("sizes/") for name in arrays if name.startswith("sizes/")]:
        values = arrays[f"{part}/bag/{name}"].astype(np.int64)
        bags.append(torch.from_numpy(np.where(values > 0, values + offset, 0)))
        offset += int(arrays[f"sizes/{name}"])
    dense, labels = torch.from_numpy(arrays[f"{part}/dense"]), torch.from_numpy(arrays[f"{part}/labels"])
    return torch.from_numpy(np.stack(ids, 1)), bags, dense, labels


def _predict(model, part):
    ids, bags, dense, _ = part
    model.eval()
    with torch.no_grad():
        pieces = [
            model(ids[rows], [bag[rows] for bag in bags], dense[rows])
            for rows in torch.arange(len(ids)).split(PREDICTED)
        ]
    model.train()
    return torch.sigmoid(torch.cat(pieces)).numpy()


def _auc(labels, scores):
    from sklearn.metrics import roc_auc_score

    return roc_auc_score(labels, scores)
