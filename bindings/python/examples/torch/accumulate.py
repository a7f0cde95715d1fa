# SPDX-License-Identifier: MIT
"""Gradient accumulation, as nanoGPT does it: micro-batches add up, then one unscale, clip, step and update.

    python accumulate.py

All micro-batches of a step have the same scale, because update() is called once, at the end of the step. If one of them
overflows, the sum overflows and the whole step is skipped; accumulate_checked.py drops only that micro-batch.
"""

import torch
from torch import nn

from gradscaler.torch import GradScaler

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
MICRO_BATCHES, GRAD_CLIP = 4, 1.0


def train(scaler):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(16, 64), nn.GELU(), nn.Linear(64, 4)).to(DEVICE)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    inputs, targets = (
        torch.randn(MICRO_BATCHES, 64, 16, device=DEVICE),
        torch.randn(MICRO_BATCHES, 64, 4, device=DEVICE),
    )

    for _ in range(30):
        for micro_step in range(MICRO_BATCHES):
            with torch.autocast(DEVICE, dtype=torch.float16):
                loss = nn.functional.mse_loss(model(inputs[micro_step]), targets[micro_step])
                loss = loss / MICRO_BATCHES  # the gradients then add up to the gradients of the mean
            scaler.scale(loss).backward()
        if GRAD_CLIP != 0.0:
            scaler.unscale_(optimizer)
            nn.utils.clip_grad_norm_(model.parameters(), GRAD_CLIP)
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad(set_to_none=True)
    return model, loss.item() * MICRO_BATCHES


if __name__ == "__main__":
    scaler = GradScaler(DEVICE)
    _, loss = train(scaler)
    print(f"loss {loss:.4f}, scale {scaler.get_scale():g}")
