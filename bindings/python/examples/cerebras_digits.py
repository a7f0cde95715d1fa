#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Trains on handwritten digits in fp16 with two optimizers that share a loss, as cerebras.pytorch's trainer does.

    pip install torch scikit-learn; cerebras_digits.py

Prints the accuracy, the skipped steps and the last scale.
"""

import copy
import os
import sys

os.environ.setdefault("OMP_NUM_THREADS", "1")

import torch
from sklearn.datasets import load_digits
from torch.nn import Linear, ReLU, Sequential
from torch.nn.functional import cross_entropy

from gradscaler.cerebras import GradScaler

EPOCHS, BATCH = 16, 64


def main():
    digits = load_digits()
    order = torch.randperm(len(digits.target), generator=torch.Generator().manual_seed(1))
    images = torch.tensor(digits.data / 16.0, dtype=torch.float16)[order]
    labels = torch.tensor(digits.target)[order]

    torch.manual_seed(0)
    model = Sequential(Linear(64, 64), ReLU(), Linear(64, 10))
    half = copy.deepcopy(model).half()  # computes; the optimizers have the parameters of `model`
    optimizers = [
        torch.optim.SGD(model[0].named_parameters(), lr=0.1, momentum=0.9),
        torch.optim.AdamW(model[2].named_parameters(), lr=0.002),
    ]
    # Above the default of 2^15 the first steps overflow and are skipped.
    scaler = GradScaler(loss_scale="dynamic", init_scale=2.0**24, max_loss_scale=2.0**24, steps_per_increase=100)
    for _ in range(EPOCHS):
        for batch in torch.randperm(1400).split(BATCH):
            half.load_state_dict(model.state_dict())
            half.zero_grad()
            scaler.scale(cross_entropy(half(images[batch]).float(), labels[batch])).backward()
            for parameter, computed in zip(model.parameters(), half.parameters(), strict=True):
                parameter.grad = computed.grad.float()
            for optimizer in optimizers:
                scaler.unscale_(optimizer)
            for optimizer in optimizers:
                scaler.step(optimizer)
            scaler.update()
            scaler.raise_if_unrecoverable()
    with torch.no_grad():
        right = (model(images[1400:].float()).argmax(1) == labels[1400:]).float().mean().item()
    skipped = scaler.get_num_skipped_steps().item()
    print(f"{right:.1%} right, {skipped} steps skipped, scale now {scaler.get_scale():g}")
    return right < 0.93 or skipped == 0 or skipped % 2 == 1


if __name__ == "__main__":
    sys.exit(main())
