# SPDX-License-Identifier: MIT
"""Several models, losses and optimizers share one scaler: one update at the end of the iteration.

    python several.py

step() judges each optimizer by its own gradients; update() lowers the scale if any of them overflowed.
"""

import torch
from torch import nn

from gradscaler.torch import GradScaler

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


def train(scaler):
    torch.manual_seed(0)
    model0, model1 = (nn.Linear(16, 4).to(DEVICE) for _ in range(2))
    optimizer0 = torch.optim.SGD(model0.parameters(), lr=0.01)
    optimizer1 = torch.optim.AdamW(model1.parameters(), lr=0.01)
    inputs, targets = torch.randn(256, 16, device=DEVICE), torch.randn(256, 4, device=DEVICE)

    for _ in range(50):
        optimizer0.zero_grad()
        optimizer1.zero_grad()
        with torch.autocast(DEVICE, dtype=torch.float16):
            output0, output1 = model0(inputs), model1(inputs)
            loss0 = nn.functional.mse_loss(2 * output0 + 3 * output1, targets)
            loss1 = nn.functional.mse_loss(3 * output0 - 5 * output1, targets)
        scaler.scale(loss0).backward(retain_graph=True)
        scaler.scale(loss1).backward()
        scaler.unscale_(optimizer0)  # needed only before gradients are read
        nn.utils.clip_grad_norm_(model0.parameters(), 1.0)
        scaler.step(optimizer0)
        scaler.step(optimizer1)
        scaler.update()
    return nn.ModuleList((model0, model1)), (loss0 + loss1).item()


if __name__ == "__main__":
    scaler = GradScaler(DEVICE)
    _, loss = train(scaler)
    print(f"loss {loss:.4f}, scale {scaler.get_scale():g}")
