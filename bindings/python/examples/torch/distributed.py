# SPDX-License-Identifier: MIT
"""DistributedDataParallel: a scaler on each rank; they agree, because all ranks have the same gradients.

    python distributed.py        # two processes on this machine; with GPUs, on two of them

DDP adds up the gradients of all ranks, so an Inf on one rank reaches all ranks. Every rank then skips the same step and
moves its scale in the same way. If ranks have different gradients (pipelines, sharded optimizers), see sharded.py.
"""

import tempfile

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import nn

from gradscaler.torch import GradScaler

RANKS = 2
DEVICE = "cuda" if torch.cuda.device_count() >= RANKS else "cpu"


def train(rank, scaler, bad=(3, 1)):
    """Trains on one rank; `bad` is a step and a rank with an Inf in its data."""
    torch.manual_seed(0)
    device = torch.device(DEVICE, rank) if DEVICE == "cuda" else torch.device("cpu")
    model = nn.Sequential(nn.Linear(16, 64), nn.GELU(), nn.Linear(64, 4)).to(device)
    model = nn.parallel.DistributedDataParallel(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    torch.manual_seed(1 + rank)  # each rank has its own data
    inputs, targets = torch.randn(128, 16, device=device), torch.randn(128, 4, device=device)

    for step in range(30):
        optimizer.zero_grad()
        x = torch.full_like(inputs, torch.inf) if (step, rank) == bad else inputs
        with torch.autocast(DEVICE, dtype=torch.float16):
            loss = nn.functional.mse_loss(model(x), targets)
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
    return model, loss.item()


def worker(rank, folder, kind, results):
    torch.set_num_threads(1)
    dist.init_process_group(
        "nccl" if DEVICE == "cuda" else "gloo", init_method=f"file://{folder}/group", rank=rank, world_size=RANKS
    )
    scaler = kind(DEVICE)
    model, loss = train(rank, scaler)
    results[rank] = [p.detach().cpu() for p in model.parameters()], loss, scaler.get_scale()
    dist.destroy_process_group()


def run(kind=GradScaler):
    """Returns (parameters, loss, scale) of each rank."""
    with tempfile.TemporaryDirectory() as folder, mp.Manager() as manager:
        results = manager.dict()
        mp.spawn(worker, (folder, kind, results), nprocs=RANKS)
        return [results[rank] for rank in range(RANKS)]


if __name__ == "__main__":
    for rank, (_, loss, scale) in enumerate(run()):
        print(f"rank {rank}: loss {loss:.4f}, scale {scale:g}")
