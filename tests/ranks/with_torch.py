# SPDX-License-Identifier: MIT
"""A rank of torch.distributed over gloo."""

import datetime
import hashlib
import os
import signal
import time

import torch
import torch.distributed as dist
from problem import ROUNDS, SHARDS, batch, start
from steps import BAD_RANK, BAD_STEP, GROWTH_INTERVAL, INIT_SCALE, STEPS, Log, cases, gradients

from gradscaler import Want
from gradscaler.torch import GradScaler, _device, _ranks


def join(rank, size, directory, timeout=60):
    torch.set_num_threads(1)
    where = {"init_method": f"file://{directory}/group", "rank": rank, "world_size": size}
    dist.init_process_group("gloo", timeout=datetime.timedelta(seconds=timeout), **where)


def faults(rank, size, directory, fault, seconds, timeout):
    join(rank, size, directory, timeout)
    parameters = [("weight", torch.nn.Parameter(torch.zeros(8))), ("bias", torch.nn.Parameter(torch.zeros(4)))]
    optimizer = torch.optim.SGD(parameters, lr=1.0)
    scale = INIT_SCALE / 2 if fault == "drift" and rank == BAD_RANK else INIT_SCALE
    options = {"init_scale": scale, "growth_interval": GROWTH_INTERVAL, "want": Want.NORM}
    scaler = GradScaler("cpu", process_group=dist.group.WORLD, sharded=True, **options)
    scaler.scale(torch.zeros(()))
    log = Log(directory, rank)
    for step in range(STEPS):
        for (_, parameter), values in zip(parameters, gradients(step, rank), strict=True):
            parameter.grad = torch.tensor(values) * scaler.get_scale()
        if step == BAD_STEP and rank == BAD_RANK:
            if fault == "nan":
                parameters[0][1].grad[2] = torch.nan
            elif fault == "fails":
                half = torch.nn.Parameter(torch.zeros(8).half())
                half.grad = torch.ones(8).half()
                optimizer.param_groups[0]["params"][0] = half
            elif fault == "dies":
                os.kill(os.getpid(), signal.SIGKILL)
            elif fault == "late":
                time.sleep(seconds)
        before = parameters[0][1].detach().clone()
        try:
            scaler.step(optimizer)
            scaler.update()
        except Exception as error:
            log.refused(step, error)
        stepped = not torch.equal(before, parameters[0][1])
        assert stepped is not scaler.step_was_skipped
        log.stepped(step, stepped, scaler.report.norm, scaler.get_scale(), scaler.report)
    dist.destroy_process_group()


def reports(rank, size, directory, files):
    """Merges cases of as many ranks as each file has, which ranks 0, 1, ... gather."""
    join(rank, size, directory)
    for ranks, path in files.items():
        group = dist.new_group(list(range(ranks)))
        if rank < ranks:
            with open(f"{directory}/{ranks}-{rank}", "wb") as out:
                mine = torch.cat([torch.frombuffer(case[rank], dtype=torch.uint8) for case in cases(path, ranks)])
                every = _ranks.gathered(mine, group).view(ranks, -1, _device.SIZE)
                for case in every.transpose(0, 1):
                    out.write(_device.data(_device.merged(case)))
    dist.destroy_process_group()


def train(rank, size, directory):
    """Trains with four shards of a batch and four tensors of parameters: of `size` ranks, 4 or 1, each has its share.

    The gradients of a shard are float16, whose sums over the shards are exact in float64, so that they are the same in
    any order. Each rank then unscales, clips and steps the tensor that is its own.
    """
    torch.set_num_threads(1)
    if size > 1:
        join(rank, size, directory)
    images, targets = (torch.from_numpy(array) for array in batch())
    parameters = [torch.from_numpy(array).requires_grad_() for array in start()]
    mine = [rank] if size > 1 else range(SHARDS)
    optimizer = torch.optim.SGD([parameters[i] for i in mine], lr=0.1, momentum=0.9)
    group = {"process_group": dist.group.WORLD, "sharded": True} if size > 1 else {}
    scaler = GradScaler("cpu", init_scale=2.0**22, growth_interval=5, **group)
    with open(f"{directory}/{rank}", "w") as log:
        for _ in range(ROUNDS):
            sums = [torch.zeros_like(p) for p in parameters]
            for shard in mine:
                halves = [p.detach().half().requires_grad_() for p in parameters]
                x, y = images.chunk(SHARDS)[shard].half(), targets.chunk(SHARDS)[shard]
                outputs = torch.tanh(x @ halves[0] + halves[1]) @ halves[2] + halves[3]
                scaler.scale((outputs.float() - y).square().sum() / len(images)).backward()
                for total, half in zip(sums, halves, strict=True):
                    total += half.grad
            for total in sums if size > 1 else ():
                dist.all_reduce(total)
            for i in mine:
                parameters[i].grad = sums[i]
            norm = scaler.unscale_(optimizer, max_norm=1.0)
            scaler.step(optimizer)
            scaler.update()
            for i, parameter in enumerate(parameters if size > 1 else ()):
                dist.broadcast(parameter.detach(), i)
            digest = hashlib.sha256(b"".join(_device.data(p.detach()) for p in parameters)).hexdigest()
            log.write(f"{norm.item().hex()} {scaler.get_scale()} {scaler.step_was_skipped} {digest}\n")
    if size > 1:
        dist.destroy_process_group()
