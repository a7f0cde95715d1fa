# SPDX-License-Identifier: MIT
"""A rank of torch.distributed over gloo."""

import datetime

import torch
import torch.distributed as dist
from steps import GROWTH_INTERVAL, gradients, init_scale, take

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
    options = {"init_scale": init_scale(rank, fault), "growth_interval": GROWTH_INTERVAL, "want": Want.NORM}
    scaler = GradScaler("cpu", process_group=dist.group.WORLD, sharded=True, **options)
    scaler.scale(torch.zeros(()))

    def step(number, fault):
        for (_, parameter), values in zip(parameters, gradients(number, rank), strict=True):
            parameter.grad = torch.tensor(values) * scaler.get_scale()
        weight = parameters[0][1]
        if fault == "nan":
            weight.grad[2] = torch.nan
        elif fault == "fails":
            half = torch.nn.Parameter(torch.zeros(8).half())
            half.grad = torch.ones(8).half()
            optimizer.param_groups[0]["params"][0] = half
        before = weight.detach().clone()
        scaler.step(optimizer)
        scaler.update()
        stepped = not torch.equal(before, weight)
        assert stepped is not scaler.step_was_skipped
        return stepped, scaler.report.norm, scaler.get_scale(), scaler.report

    take(rank, directory, fault, seconds, step)
    dist.destroy_process_group()
