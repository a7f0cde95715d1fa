# SPDX-License-Identifier: MIT
"""Resumes, logs, says why it skips, diagnoses, saves. Step 100 has a NaN in its data, step 200 wrong labels.

python loop.py STEPS
"""

import pathlib
import sys

import torch
from torch import nn

from gradscaler.torch import GradScaler

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
CHECKPOINT = pathlib.Path("run.checkpoint")

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(8, 32), nn.GELU(), nn.Linear(32, 1)).to(DEVICE)
optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
scaler = GradScaler(DEVICE, policy="recommended")
scaler.name_parameters(model)
parts = {"model": model, "optimizer": optimizer, "scaler": scaler}


def batch(step):
    inputs = torch.randn(64, 8, generator=torch.Generator().manual_seed(step))
    targets = inputs.mean(1, keepdim=True)
    inputs[0, 0] = {100: torch.nan}.get(step, inputs[0, 0])
    return inputs.to(DEVICE), targets.to(DEVICE) * {200: 30}.get(step, 1)


first = 1
if CHECKPOINT.exists():
    saved = torch.load(CHECKPOINT)
    first = saved["step"] + 1
    for name, part in parts.items():
        part.load_state_dict(saved[name])

last = first + int(sys.argv[1]) - 1
with scaler.history("run.jsonl") as history:
    for step in range(first, last + 1):
        inputs, targets = batch(step)
        optimizer.zero_grad()
        with torch.autocast(DEVICE, dtype=torch.float16):
            loss = nn.functional.mse_loss(model(inputs), targets)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        history.add({"loss": loss.item()})
        if scaler.reason:
            print(f"step {step} {scaler.reason}")

torch.save({"step": last} | {name: part.state_dict() for name, part in parts.items()}, CHECKPOINT)
print(f"step {last}: loss {loss.item():.2g}, scale {scaler.get_scale():g}")
for finding in scaler.diagnose():
    print(finding)
