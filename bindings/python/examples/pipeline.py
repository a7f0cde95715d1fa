#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Trains two stages in fp16 with the optimizer in another thread, one step behind, as RoundPipe does.

    pip install torch scikit-learn; pipeline.py

Prints the accuracy on handwritten digits, with this training and with one that waits for every step.
"""

import copy
import os
import sys

os.environ.setdefault("OMP_NUM_THREADS", "1")

import torch
from sklearn.datasets import load_digits
from torch.nn import Linear, ReLU, Sequential
from torch.nn.functional import cross_entropy

from gradscaler.roundpipe import GradScaler, OptimizerThread

EPOCHS, BATCH = 20, 64


def train(images, labels, test_images, test_labels, is_async):
    """Returns the accuracy, the updates with an overflow, and the last scale."""
    torch.manual_seed(0)
    stages = Sequential(Sequential(Linear(64, 64), ReLU()), Linear(64, 10))
    halves = copy.deepcopy(stages).half()  # computes; the optimizer has the parameters of `stages`
    optimizer = torch.optim.SGD(stages.parameters(), lr=0.02, momentum=0.9)

    with OptimizerThread() as thread:
        scaler = GradScaler(init_scale=2.0**24, growth_interval=100, executor=thread)

        def step(gradients):
            for parameter, gradient in zip(stages.parameters(), gradients, strict=True):
                parameter.grad = gradient.float()
            scaler.step(optimizer)

        before = thread.submit(lambda: None)
        for _ in range(EPOCHS):
            for batch in torch.randperm(len(images)).split(BATCH):
                loss = cross_entropy(halves[1](halves[0](images[batch])).float(), labels[batch])
                scaler.scale(loss).backward()
                gradients = [parameter.grad for parameter in halves.parameters()]
                halves.zero_grad()  # sets gradients to None: the next backward makes new tensors
                before.result()
                if is_async:  # these parameters do not have the submitted step yet
                    halves.load_state_dict(stages.state_dict())
                before = thread.submit(step, gradients)
                scaler.update(is_async=is_async)
                if not is_async:
                    halves.load_state_dict(stages.state_dict())
        before.result()
        skipped, scale = scaler.total_overflows, scaler.get_scale()
    with torch.no_grad():
        right = stages(test_images.float()).argmax(1) == test_labels
    return right.float().mean().item(), skipped, scale


def main():
    digits = load_digits()
    images = torch.tensor(digits.data / 16.0, dtype=torch.float16)
    labels = torch.tensor(digits.target)
    order = torch.randperm(len(images), generator=torch.Generator().manual_seed(1))
    images, labels = images[order], labels[order]
    data = images[:1400], labels[:1400], images[1400:], labels[1400:]
    late, skipped, scale = train(*data, is_async=True)
    waiting, *_ = train(*data, is_async=False)
    print(f"one step behind: {late:.1%} right, {skipped} steps skipped, scale now {scale:g}; waiting: {waiting:.1%}")
    return late < 0.93 or abs(late - waiting) > 0.02 or skipped == 0


if __name__ == "__main__":
    sys.exit(main())
