# SPDX-License-Identifier: MIT
"""Loss scaling for torch: replace one import.

    from gradscaler.torch import GradScaler    # instead of torch.amp

    scaler = GradScaler("cuda")
    scaler.scale(loss).backward()
    norm = scaler.unscale_(optimizer, max_norm=1.0)   # max_norm and the whole call are optional
    scaler.step(optimizer)
    scaler.update()

GradScaler("cuda", policy="guard") is for bf16: its scale is 1, and it skips steps with Inf, NaN or an absurd norm.
Other policies can also guard: Policy("recommended", guard_norm=20).

`help(GradScaler)` lists its additions. It differs from torch's class in the following:

- a scale of 0 stops with StallError, unless on_stall is given; torch writes NaN into the parameters
- an infinite or NaN scale is refused, as are 0 and less: no step could succeed with it
- the constructor refuses a text as a scale, a float as a growth_interval, and a backoff_factor of 0
- infinities that unscaling makes are overflows; with a scale below 1 torch steps with them
- what is refused changes nothing; torch's load_state_dict can load half of a state
- rules that no scale can follow are refused by the constructor, setters and load_state_dict: a growth factor below 1, a
  backoff factor outside of (0, 1], a negative growth interval or count
- complex gradients are unscaled, and gradients in bfloat16 and float8 on every device
- DTensors of several meshes, or beside plain tensors, are unscaled; Partial ones are refused: their sum is not known
- a gradient that two parameters share is unscaled once; gradients that overlap only in part are refused
- the step with gradients and learning rates of 0 that torch.distributed.checkpoint makes before it loads moves no scale
- gradients that are unscaled after the update() that followed their loss are divided by the scale of the loss, if a
  policy other than torch's is given; with torch's they are divided as by torch, and a warning says so once
- a fused optimizer can step again after its step failed; torch then divides its gradients by the scale once more
- found_inf is one tensor, on the device of the scale; other devices get copies
- new_scale can have any shape of one element, and can be an int
- a disabled scaler answers its getters
- messages begin with torch's words, then name the parameter and say what to do
"""

from . import trainers as trainers
from ._ops import TensorScaler
from ._replace import replace_torch
from ._scaler import GradScaler, StallError
from ._trace import Trace, trace

__all__ = ["GradScaler", "StallError", "TensorScaler", "Trace", "replace_torch", "trace"]
