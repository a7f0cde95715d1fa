# SPDX-License-Identifier: MIT
"""A rank of torch.distributed over gloo."""

import datetime
import os
import signal
import time

import torch
import torch.distributed as dist
from steps import BAD_RANK, BAD_STEP, GROWTH_INTERVAL, INIT_SCALE, STEPS, Log, gradients

from gradscaler import Want
from gradscaler.torch import GradScaler


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
            time.sleep(seconds)
            if fault == "nan":
                parameters[0][1].grad[2] = torch.nan
            elif fault == "fails":
                half = torch.nn.Parameter(torch.zeros(8).half())
                half.grad = torch.ones(8).half()
                optimizer.param_groups[0]["params"][0] = half
            elif fault == "dies":
                os.kill(os.getpid(), signal.SIGKILL)
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
