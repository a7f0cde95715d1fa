# SPDX-License-Identifier: MIT
"""Clipping each element of the gradients: the limit is for unscaled gradients, so unscale first.

python clip_value.py
"""

import torch
from torch import nn

from gradscaler.torch import GradScaler

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


def train(scaler):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(16, 64), nn.GELU(), nn.Linear(64, 4)).to(DEVICE)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    inputs, targets = torch.randn(256, 16, device=DEVICE), torch.randn(256, 4, device=DEVICE)

    for _ in range(50):
        optimizer.zero_grad()
        with torch.autocast(DEVICE, dtype=torch.float16):
            loss = nn.functional.mse_loss(model(inputs), targets)
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        nn.utils.clip_grad_value_(model.parameters(), 0.01)
        scaler.step(optimizer)
        scaler.update()
    return model, loss.item()


if __name__ == "__main__":
    scaler = GradScaler(DEVICE)
    _, loss = train(scaler)
    print(f"loss {loss:.4f}, scale {scaler.get_scale():g}")
