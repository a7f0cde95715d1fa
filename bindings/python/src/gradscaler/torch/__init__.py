# SPDX-License-Identifier: MIT
"""Loss scaling for torch: replace one import.

    from gradscaler.torch import GradScaler    # instead of torch.amp

    scaler = GradScaler("cuda")
    scaler.scale(loss).backward()
    norm = scaler.unscale_(optimizer, max_norm=1.0)   # without max_norm, and left out, as in torch
    scaler.step(optimizer)
    scaler.update()

GradScaler("cuda", policy="guard") is for bf16: its scale is 1, and it skips steps whose norm is absurd, beside those
that are not finite. Any other policy can guard, too: Policy("recommended", guard_norm=20).

`help(GradScaler)` tells what it has beside torch's class. Where it differs from torch's class, and why:

- a scale of 0 stops with StallError: torch writes NaN into the parameters. on_stall is asked first
- an infinite or NaN scale is refused, as are 0 and less, where a scale is given: no step could succeed with it
- so are, where a scaler is made, a scale that is a text, a growth_interval that is a float, and a backoff_factor of 0
- infinities that unscaling makes are overflows: with a scale below 1 torch steps with them
- what is refused changes nothing: torch's load_state_dict takes over half of a state
- rules that no scale can follow are refused by the setters and load_state_dict, too: a growth factor below 1, a
  backoff factor outside of (0, 1], a negative growth interval or count
- complex gradients are unscaled, and so are those in bfloat16 and float8 on every device
- DTensors of several meshes, or beside plain tensors, are unscaled; Partial ones are refused, as their sum is not known
- a gradient that two parameters share is unscaled once; those that share only a part of their memory are refused
- a fused optimizer whose step failed may step again: torch then divides its gradients by the scale once more
- found_inf is one tensor, on the device of the scale, wherever the gradients are; other devices get copies
- new_scale may have any shape of one element, and may be an int
- a disabled scaler answers its getters
- messages begin with torch's, and go on with the parameter and what to do
"""

from . import trainers as trainers
from ._ops import TensorScaler
from ._scaler import GradScaler, StallError

__all__ = ["GradScaler", "StallError", "TensorScaler"]
