"""W1 in PyTorch: sparse `nn.Embedding` and Adagrad's sparse update; several workers by DistributedDataParallel."""

import os
import socket
import subprocess
import sys

import peer


def main():
    """-> the exit status."""
    arguments = peer.parse(__doc__)
    if arguments.workers > 1 and arguments.rank < 0:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        each = [[*sys.argv, f"--rank={rank}", f"--port={port}"] for rank in range(arguments.workers)]
        started = [subprocess.Popen([sys.executable, *command]) for command in each]
        return max(abs(process.wait()) for process in started)
    _train(arguments, max(arguments.rank, 0))
    return 0


def _train(arguments, rank):
    peer.pin(rank, arguments.workers)

    import torch
    from torch import nn

    torch.set_num_threads(1)
    torch.manual_seed(0)
    (ids, dense, labels), sizes = peer.read_batches(arguments.data, rank)
    ids, dense, labels = map(torch.from_numpy, (ids, dense, labels[..., None]))
    count, batch_size, fields = ids.shape

    class DeepFM(nn.Module):
        def __init__(self):
            super().__init__()
            self.embedding = nn.Embedding(sizes["vocabulary"], sizes["dim"], sparse=True)
            nn.init.normal_(self.embedding.weight, std=sizes["stddev"])
            self.linear = nn.EmbeddingBag(sizes["vocabulary"], 1, mode="sum", sparse=True)
            nn.init.zeros_(self.linear.weight)
            inputs, layers = fields * sizes["dim"] + dense.shape[-1], []
            for units in sizes["hidden_units"]:
                layers += [nn.Linear(inputs, units), nn.ReLU()]
                inputs = units
            self.mlp = nn.Sequential(*layers, nn.Linear(inputs, 1))

        def forward(self, ids, dense):
            rows = self.embedding(ids)
            total = rows.sum(1)
            second = 0.5 * (total * total - (rows * rows).sum(1)).sum(1, keepdim=True)
            return self.mlp(torch.cat([rows.flatten(1), dense], 1)) + second + self.linear(ids)

    model = net = DeepFM()
    if arguments.workers > 1:
        os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(arguments.port))
        torch.distributed.init_process_group("gloo", rank=rank, world_size=arguments.workers)
        model = nn.parallel.DistributedDataParallel(net)
    optimizer = torch.optim.Adagrad(
        net.parameters(), lr=sizes["learning_rate"], initial_accumulator_value=sizes["accumulator"]
    )

    def step(i):
        optimizer.zero_grad(set_to_none=True)
        logits = model(ids[i % count], dense[i % count])
        nn.functional.binary_cross_entropy_with_logits(logits, labels[i % count]).backward()
        optimizer.step()

    peer.measure(arguments, rank, batch_size, step, f"torch {torch.__version__}")
    if arguments.workers > 1:
        torch.distributed.destroy_process_group()


if __name__ == "__main__":
    sys.exit(main())
