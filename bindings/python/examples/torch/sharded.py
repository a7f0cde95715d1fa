# SPDX-License-Identifier: MIT
"""Ranks with different gradients, here the two stages of a pipeline: they agree on overflows and on the norm.

    python sharded.py        # two processes on this machine; with GPUs, on two of them

If one rank overflows, all must skip, and clipping needs the norm of the whole model. With a process group the scaler
gathers the reports of the ranks, one collective per step; torch's class cannot do this.
"""

import tempfile

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import nn

from gradscaler.torch import GradScaler

RANKS, STEPS, BATCH, WIDTH = 2, 30, 128, 64
DEVICE = "cuda" if torch.cuda.device_count() >= RANKS else "cpu"
BAD_STEP = 3  # only a gradient of the first stage is infinite at this step


def stages():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(16, WIDTH), nn.GELU()), nn.Linear(WIDTH, 4)


def data(device):
    torch.manual_seed(1)
    return torch.randn(BATCH, 16).to(device), torch.randn(BATCH, 4).to(device)


def train(rank, scaler):
    """Trains the stage of this rank; returns the norm of all gradients before clipping, for each step."""
    device = torch.device(DEVICE, rank) if DEVICE == "cuda" else torch.device("cpu")
    stage = stages()[rank].to(device)
    optimizer = torch.optim.AdamW(stage.parameters(), lr=0.01)
    inputs, targets = data(device)
    between = torch.empty(BATCH, WIDTH, device=device)  # activations, and their gradients
    norms = []

    for step in range(STEPS):
        optimizer.zero_grad()
        if rank == 0:
            scaler.scale(torch.ones((), device=device))  # the loss is on another rank; this makes the scale here
            outputs = stage(inputs)
            dist.send(outputs.detach(), 1)
            dist.recv(between, 1)
            outputs.backward(between)  # the gradients are scaled already
            if step == BAD_STEP:
                stage[0].weight.grad[0, 0] = torch.inf
        else:
            dist.recv(between, 0)
            received = between.clone().requires_grad_()
            loss = nn.functional.mse_loss(stage(received), targets)
            scaler.scale(loss).backward()
            dist.send(received.grad, 0)
        norms.append(scaler.unscale_(optimizer, max_norm=0.5).item())
        scaler.step(optimizer)
        scaler.update()
    return stage, norms


def worker(rank, folder, results):
    torch.set_num_threads(1)
    dist.init_process_group(
        "nccl" if DEVICE == "cuda" else "gloo", init_method=f"file://{folder}/group", rank=rank, world_size=RANKS
    )
    scaler = GradScaler(DEVICE, process_group=dist.group.WORLD, sharded=True)
    stage, norms = train(rank, scaler)
    results[rank] = [p.detach().cpu() for p in stage.parameters()], norms, scaler.get_scale()
    dist.destroy_process_group()


def run():
    """Returns (parameters, norms, scale) of each rank."""
    with tempfile.TemporaryDirectory() as folder, mp.Manager() as manager:
        results = manager.dict()
        mp.spawn(worker, (folder, results), nprocs=RANKS)
        return [results[rank] for rank in range(RANKS)]


if __name__ == "__main__":
    for rank, (_, norms, scale) in enumerate(run()):
        print(f"rank {rank}: norm {norms[-1]:.4f}, scale {scale:g}")
