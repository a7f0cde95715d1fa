# SPDX-License-Identifier: MIT
"""FSDP2 with two optimizers and one clip: both step on all ranks, or neither does on any.

    python fsdp.py           # two processes on this machine; with GPUs, on two of them

Each rank has a shard of every parameter and of its gradient, so a rank can overflow alone: one does in BAD_STEPS.
"""

import tempfile

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

from gradscaler.torch import GradScaler

RANKS, STEPS, BATCH = 2, 30, 64
DEVICE = "cuda" if torch.cuda.device_count() >= RANKS else "cpu"
BAD_STEPS = {3: torch.inf, 6: torch.nan}


def train(rank, scaler, mesh):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(16, 64), nn.GELU(), nn.Linear(64, 4)).to(DEVICE)
    for layer in model:
        if list(layer.parameters()):
            fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    optimizers = torch.optim.AdamW(model[0].parameters(), lr=0.01), torch.optim.SGD(model[2].parameters(), lr=0.05)
    torch.manual_seed(1 + rank)
    inputs, targets = torch.randn(BATCH, 16, device=DEVICE), torch.randn(BATCH, 4, device=DEVICE)
    skipped = []

    for step in range(STEPS):
        for optimizer in optimizers:
            optimizer.zero_grad()
        loss = nn.functional.mse_loss(model(inputs), targets)
        scaler.scale(loss).backward()
        if step in BAD_STEPS and rank == 1:
            model[2].weight.grad.to_local()[0, 0] = BAD_STEPS[step]
        scaler.step_all(optimizers, max_norm=1.0)
        scaler.update()
        if scaler.step_was_skipped:
            skipped.append(step)
    whole = [parameter.full_tensor().detach().cpu() for parameter in model.parameters()]
    return whole, loss.item(), skipped


def worker(rank, folder, results):
    torch.set_num_threads(1)
    dist.init_process_group(
        "nccl" if DEVICE == "cuda" else "gloo", init_method=f"file://{folder}/group", rank=rank, world_size=RANKS
    )
    scaler = GradScaler(DEVICE, process_group=dist.group.WORLD, sharded=True)
    whole, loss, skipped = train(rank, scaler, init_device_mesh(DEVICE, (RANKS,)))
    results[rank] = whole, loss, skipped, scaler.get_scale()
    dist.destroy_process_group()


def run():
    """Returns (parameters, loss, skipped steps, scale) of each rank."""
    with tempfile.TemporaryDirectory() as folder, mp.Manager() as manager:
        results = manager.dict()
        mp.spawn(worker, (folder, results), nprocs=RANKS)
        return [results[rank] for rank in range(RANKS)]


if __name__ == "__main__":
    for rank, (_, loss, skipped, scale) in enumerate(run()):
        print(f"rank {rank}: loss {loss:.4f}, skipped steps {skipped}, scale {scale:g}")
