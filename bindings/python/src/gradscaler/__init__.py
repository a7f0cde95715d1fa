# SPDX-License-Identifier: MIT
"""Loss scaling for mixed-precision training.

    scaler = gradscaler.Scaler("recommended")
    loss = scaler.scale(loss)                  # and gradients of it, in float16
    report = scaler.unscale(grads, out=out)    # a list or dict of arrays, one call
    if not report.overflow:
        ...                                    # optimizer step with out
    scaler.update(report)

The rules of torch, Megatron-LM, DeepSpeed and others are presets: `gradscaler.presets()` lists them.
`Scaler.load_state_dict` and `Scaler.state_dict` read and write the checkpoints of these frameworks, and
`Policy.from_settings` reads their settings: `gradscaler.formats()` lists them.
`gradscaler.cb16` is a NumPy dtype for Cerebras' 16 bits: `array.view(gradscaler.cb16)` of a uint16 array.
"""

from . import _arrays
from ._arrays import Arrays
from ._entries import Note, formats
from ._gradscaler import Error
from ._history import History
from ._info import Info, info
from ._lines import diagnose
from ._plot import plot
from ._policy import Policy, presets
from ._report import Reason, Report
from ._scaler import Scaler
from ._structs import (
    Arithmetic,
    BadLoss,
    Cause,
    Event,
    Factor,
    Growth,
    Guard,
    GuardSample,
    LimitRule,
    Loss,
    Metric,
    NoteKind,
    Outcome,
    OverflowReset,
    OverflowTest,
    Quirk,
    ReportKind,
    State,
    Status,
    Want,
)

__version__ = "0.10.0"
__all__ = [
    "Arithmetic",
    "Arrays",
    "BadLoss",
    "Cause",
    "Error",
    "Event",
    "Factor",
    "Growth",
    "Guard",
    "History",
    "Info",
    "LimitRule",
    "Loss",
    "Metric",
    "Note",
    "NoteKind",
    "Outcome",
    "Policy",
    "Quirk",
    "Reason",
    "Report",
    "ReportKind",
    "OverflowReset",
    "GuardSample",
    "Scaler",
    "State",
    "Status",
    "OverflowTest",
    "Want",
    "diagnose",
    "formats",
    "info",
    "plot",
    "presets",
]


def __getattr__(name: str) -> object:
    """Makes `cb16` on first use: only `cb16` needs NumPy."""
    if name == "cb16":
        return _arrays.cb16()
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
