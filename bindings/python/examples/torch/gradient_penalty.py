# SPDX-License-Identifier: MIT
"""A gradient penalty: the gradients of a scaled loss are unscaled by hand, in the graph, and their norm joins the loss.

python gradient_penalty.py
"""

import torch
from torch import nn

from gradscaler.torch import GradScaler

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


def train(scaler):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(16, 64), nn.Tanh(), nn.Linear(64, 4)).to(DEVICE)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    inputs, targets = torch.randn(256, 16, device=DEVICE), torch.randn(256, 4, device=DEVICE)

    for _ in range(50):
        optimizer.zero_grad()
        with torch.autocast(DEVICE, dtype=torch.float16):
            loss = nn.functional.mse_loss(model(inputs), targets)

        # Scaled, because this backward pass can also underflow.
        scaled = torch.autograd.grad(scaler.scale(loss), model.parameters(), create_graph=True)
        inverse = 1.0 / scaler.get_scale()
        gradients = [g * inverse for g in scaled]

        with torch.autocast(DEVICE, dtype=torch.float16):
            penalty = sum(g.pow(2).sum() for g in gradients).sqrt()
            loss = loss + 0.1 * penalty
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
    return model, loss.item()


if __name__ == "__main__":
    scaler = GradScaler(DEVICE)
    _, loss = train(scaler)
    print(f"loss {loss:.4f}, scale {scaler.get_scale():g}")
