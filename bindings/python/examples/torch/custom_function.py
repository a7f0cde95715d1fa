# SPDX-License-Identifier: MIT
"""Custom autograd functions under autocast: one that follows autocast, one that needs float32.

    python custom_function.py

Their backward passes get scaled gradients and return scaled gradients. Backward passes are linear in the gradients, so
they need not know the scale.
"""

import torch
from torch import nn

from gradscaler.torch import GradScaler

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


class Multiply(torch.autograd.Function):
    """A product of matrices in the dtype that autocast chose, also in the backward pass."""

    @staticmethod
    @torch.amp.custom_fwd(device_type=DEVICE)
    def forward(ctx, a, b):
        ctx.save_for_backward(a, b)
        return a.mm(b)

    @staticmethod
    @torch.amp.custom_bwd(device_type=DEVICE)
    def backward(ctx, gradient):
        a, b = ctx.saved_tensors
        return gradient.mm(b.t()), a.t().mm(gradient)


class Normalize(torch.autograd.Function):
    """Divides rows by their lengths. It casts inputs to float32, because squares would overflow float16."""

    @staticmethod
    @torch.amp.custom_fwd(device_type=DEVICE, cast_inputs=torch.float32)
    def forward(ctx, x):
        y = x / (lengths := x.norm(dim=1, keepdim=True))
        ctx.save_for_backward(y, lengths)
        return y

    @staticmethod
    @torch.amp.custom_bwd(device_type=DEVICE)
    def backward(ctx, gradient):
        y, lengths = ctx.saved_tensors
        return (gradient - y * (gradient * y).sum(dim=1, keepdim=True)) / lengths


def train(scaler):
    torch.manual_seed(0)
    weight = nn.Parameter(torch.randn(16, 4, device=DEVICE))
    optimizer = torch.optim.SGD([weight], lr=0.1)
    inputs = torch.randn(256, 16, device=DEVICE)
    targets = nn.functional.normalize(inputs @ torch.randn(16, 4, device=DEVICE))

    for _ in range(50):
        optimizer.zero_grad()
        with torch.autocast(DEVICE, dtype=torch.float16):
            loss = nn.functional.mse_loss(Normalize.apply(Multiply.apply(inputs, weight)), targets)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
    return nn.ParameterList([weight]), loss.item()


if __name__ == "__main__":
    scaler = GradScaler(DEVICE)
    _, loss = train(scaler)
    print(f"loss {loss:.4f}, scale {scaler.get_scale():g}")
