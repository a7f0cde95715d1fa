# SPDX-License-Identifier: MIT
"""An average of the parameters and a learning rate that move only if the step was taken; checkpoints with JSON.

    python ema.py

If skipped steps also moved the average or the schedule, a run would depend on its number of overflows. The scaler's
state is a dict of numbers, so it fits into JSON. A run that continues without it starts with the initial scale, and
skips a few steps until the scale fits.
"""

import copy
import json

import torch
from torch import nn
from torch.optim import swa_utils

from gradscaler.torch import GradScaler

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
STEPS, DECAY = 40, 0.9


class Run:
    """Returns the contents of a checkpoint."""

    def __init__(self, scaler):
        torch.manual_seed(0)
        self.model = nn.Sequential(nn.Linear(16, 64), nn.GELU(), nn.Linear(64, 4)).to(DEVICE)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1, momentum=0.9)
        self.scaler = scaler
        self.schedule = scaler.follow(torch.optim.lr_scheduler.CosineAnnealingLR(self.optimizer, STEPS))
        average = swa_utils.AveragedModel(self.model, multi_avg_fn=swa_utils.get_ema_multi_avg_fn(DECAY))
        self.average = scaler.follow(average, "update_parameters")
        self.taken = 0

    def save(self):
        parts = self.model, self.average, self.optimizer, self.schedule
        return [copy.deepcopy(part.state_dict()) for part in parts], json.dumps(self.scaler.state_dict())

    def load(self, saved, scaler_json=None):
        for part, state in zip((self.model, self.average, self.optimizer, self.schedule), saved, strict=True):
            part.load_state_dict(state)
        if scaler_json is not None:
            self.scaler.load_state_dict(json.loads(scaler_json))


def train(run, steps):
    inputs, targets = torch.randn(256, 16, device=DEVICE), torch.randn(256, 4, device=DEVICE)
    for _ in range(steps):
        run.optimizer.zero_grad()
        with torch.autocast(DEVICE, dtype=torch.float16):
            loss = nn.functional.mse_loss(run.model(inputs), targets)
        run.scaler.scale(loss).backward()
        run.scaler.step(run.optimizer)
        run.scaler.update()
        run.schedule.step()
        run.average.update_parameters(run.model)
        run.taken += not run.scaler.step_was_skipped
    return loss.item()


if __name__ == "__main__":
    run = Run(GradScaler(DEVICE, init_scale=2.0**24))
    loss = train(run, STEPS)
    rate = run.schedule.get_last_lr()[0]
    print(f"loss {loss:.4f}, {run.taken} of {STEPS} steps taken, learning rate {rate:.4f}")
