# SPDX-License-Identifier: MIT
"""nn.DataParallel: one process, several GPUs, one scaler.

    python data_parallel.py

It needs at least two GPUs to be parallel; with fewer, DataParallel runs the module unchanged.
"""

import torch
from torch import nn

from gradscaler.torch import GradScaler

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


class Model(nn.Module):
    """A model that enters autocast in its forward, because DataParallel calls it in other threads."""

    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(16, 64), nn.GELU(), nn.Linear(64, 4))

    def forward(self, inputs):
        with torch.autocast(DEVICE, dtype=torch.float16):
            return self.layers(inputs)


def train(scaler):
    torch.manual_seed(0)
    model = nn.DataParallel(Model().to(DEVICE))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    inputs, targets = torch.randn(256, 16, device=DEVICE), torch.randn(256, 4, device=DEVICE)

    for _ in range(50):
        optimizer.zero_grad()
        with torch.autocast(DEVICE, dtype=torch.float16):
            loss = nn.functional.mse_loss(model(inputs), targets)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
    return model, loss.item()


if __name__ == "__main__":
    scaler = GradScaler(DEVICE)
    _, loss = train(scaler)
    gpus = torch.cuda.device_count()
    ran = f"on {gpus} GPUs" if gpus > 1 else "not parallel: that needs two GPUs"
    print(f"loss {loss:.4f}, scale {scaler.get_scale():g}, {ran}")
