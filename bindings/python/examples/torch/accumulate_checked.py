# SPDX-License-Identifier: MIT
"""Gradient accumulation that drops only the micro-batch that overflowed, and steps with the others.

    python accumulate_checked.py

One C call adds all gradients of a micro-batch or none. An overflow still lowers the scale.
"""

import torch
from torch import nn

import gradscaler
from gradscaler.torch import GradScaler

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
MICRO_BATCHES = 4


def train(scaler, bad=(3, 2)):
    """Returns the model, the loss and the dropped micro-batches; `bad` is a step and micro-batch with an Inf."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(16, 64), nn.GELU(), nn.Linear(64, 4)).to(DEVICE)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    inputs, targets = (
        torch.randn(MICRO_BATCHES, 64, 16, device=DEVICE),
        torch.randn(MICRO_BATCHES, 64, 4, device=DEVICE),
    )
    adder = gradscaler.Scaler("static", init_scale=1.0)  # the sums stay scaled: step() unscales them
    parameters, dropped = list(model.parameters()), []

    for step in range(30):
        sums, kept = [torch.zeros_like(p) for p in parameters], 0
        for micro_step in range(MICRO_BATCHES):
            x = torch.full_like(inputs[0], torch.inf) if (step, micro_step) == bad else inputs[micro_step]
            with torch.autocast(DEVICE, dtype=torch.float16):
                loss = nn.functional.mse_loss(model(x), targets[micro_step])
            gradients = torch.autograd.grad(scaler.scale(loss), parameters)
            if adder.unscale_accumulate(gradients, sums).overflow:
                dropped.append((step, micro_step))
            else:
                kept += 1
        for p, total, last in zip(parameters, sums, gradients, strict=True):
            p.grad = total / kept if kept else last  # if none is kept, step() must see the overflow
        scaler.step(optimizer)
        backed_off = scaler.get_scale() * scaler.get_backoff_factor()
        scaler.update(backed_off if 0 < kept < MICRO_BATCHES else None)
    return model, loss.item(), dropped


if __name__ == "__main__":
    scaler = GradScaler(DEVICE)
    _, loss, dropped = train(scaler)
    print(f"loss {loss:.4f}, scale {scaler.get_scale():g}, dropped (step, micro-batch): {dropped}")
