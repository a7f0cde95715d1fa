# SPDX-License-Identifier: MIT
"""Clipping by the norm of all gradients: as in torch's documentation, and in the same pass as unscaling.

python clip_norm.py
"""

import torch
from torch import nn

from gradscaler.torch import GradScaler

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
MAX_NORM = 0.5


def train(scaler, fused=False):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(16, 64), nn.GELU(), nn.Linear(64, 4)).to(DEVICE)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    inputs, targets = torch.randn(256, 16, device=DEVICE), torch.randn(256, 4, device=DEVICE)

    for _ in range(50):
        optimizer.zero_grad()
        with torch.autocast(DEVICE, dtype=torch.float16):
            loss = nn.functional.mse_loss(model(inputs), targets)
        scaler.scale(loss).backward()
        if fused:  # gradscaler.torch only: the gradients are read once
            scaler.unscale_(optimizer, max_norm=MAX_NORM)
        else:
            scaler.unscale_(optimizer)
            nn.utils.clip_grad_norm_(model.parameters(), MAX_NORM)
        scaler.step(optimizer)  # does not unscale them again
        scaler.update()
    return model, loss.item()


if __name__ == "__main__":
    print(f"loss {train(GradScaler(DEVICE))[1]:.6f}, fused {train(GradScaler(DEVICE), fused=True)[1]:.6f}")
