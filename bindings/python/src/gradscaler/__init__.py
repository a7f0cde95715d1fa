"""Loss scaling for mixed-precision training.

    scaler = gradscaler.Scaler("recommended")
    loss = scaler.scale(loss)                  # and gradients of it, in float16
    report = scaler.unscale(grads, out=out)    # a list or dict of arrays, one call
    if not report.found_inf:
        ...                                    # optimizer step with out
    scaler.update(report)

The rules of torch, Megatron-LM, DeepSpeed and others are presets: `gradscaler.presets()` lists them.
"""

from ._gradscaler import Error
from ._scaler import Info, Policy, Report, Scaler, info, presets
from ._structs import Arithmetic, Event, Factor, Growth, Limit, Overflow, Quirk, Reset, State, Want

__version__ = "0.1.0"
__all__ = [
    "Arithmetic",
    "Error",
    "Event",
    "Factor",
    "Growth",
    "Info",
    "Limit",
    "Overflow",
    "Policy",
    "Quirk",
    "Report",
    "Reset",
    "Scaler",
    "State",
    "Want",
    "info",
    "presets",
]
