# SPDX-License-Identifier: MIT
"""Cerebras' GradScaler (cerebras.pytorch.amp) for torch on CPUs and GPUs, without Cerebras' backend.

    scaler = gradscaler.cerebras.GradScaler(loss_scale="dynamic")  # in place of cstorch.amp.GradScaler
    for inputs, labels in batches:
        optimizer_step(loss_of(model(inputs), labels), optimizer, scaler)

Differences from Cerebras' class:

- Theirs scales and saves only on Cerebras' machines; this one does so everywhere.
- It has no registry of all optimizers: unscale the optimizers of a step before the first one steps, or name them in
  `optimizers`.
- A skipped step does not run, so nothing has to be restored. Theirs runs it and then restores the parameters and
  optimizer states that it knows.
- Gradients can be accumulated over several scaled losses. step() unscales gradients if unscale_() did not.
- Squares of float16 gradients are added in float32 and double: a norm above 256 is no overflow.
- get_scale() returns a new tensor each time; the next update overwrites theirs.
- It refuses a floor above the ceiling, and saved values that no scaler can have.
"""

from __future__ import annotations

import math
import sys
import warnings
from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch.amp.grad_scaler import OptState

from . import _gradscaler as c
from . import _optimizers
from ._arguments import _number, _positive
from ._optimizers import Progress
from ._policy import Policy
from ._report import Report
from ._scaler import Scaler
from ._structs import State, Want

__all__ = ["GradScaler", "optimizer_step"]

_LEAST = 2.0**-14
_COUNTS = {"steps_since_rescale": "steps_since_change", "overflows_since_rescale": "overflows_since_reset"}


class GradScaler:
    """A replacement for cerebras.pytorch.amp.GradScaler.

    loss_scale: "dynamic", or a number: losses are then scaled by it, without any check; None is 1
    init_scale (initial_loss_scale in their documentation): default 2^15; for cbfloat16 2^31
    steps_per_increase: the scale doubles after this many steps plus one, counting overflows; default 2000
    min_loss_scale, max_loss_scale: default 2^-14, and 2^15 for float16 or 2^31 for cbfloat16. Their documentation
        writes 2e-14, 2e15 and 2e31 for these
    overflow_tolerance: if more than this share of the steps since the last change of the scale overflowed, it is halved
    max_gradient_norm: clips the gradients of all optimizers by their common norm before they step
    half_dtype: "float16", "bfloat16" or "cbfloat16", or torch's dtype; default: cerebras.pytorch's if it is imported,
        else float16
    optimizers: the optimizers that share a step; needed if step() is called without unscale_() for each of them

    A step overflows if a gradient of any optimizer is Inf or NaN, or if the sum of all squares is above the largest
    float32; then no optimizer steps. Only one thread at a time can use a scaler.
    """

    def __init__(
        self,
        loss_scale: str | float | None = None,
        init_scale: float | None = None,
        steps_per_increase: int | None = None,
        min_loss_scale: float | None = None,
        max_loss_scale: float | None = None,
        overflow_tolerance: float = 0.0,
        max_gradient_norm: float | None = None,
        *,
        initial_loss_scale: float | None = None,
        half_dtype: str | torch.dtype | None = None,
        optimizers: Iterable[torch.optim.Optimizer] = (),
    ) -> None:
        if init_scale is not None and initial_loss_scale is not None:
            raise TypeError("init_scale and initial_loss_scale are one number by two names: pass one of them")
        init_scale = init_scale or initial_loss_scale
        half = _half_dtype(half_dtype)
        self.loss_is_scaled = (loss_scale or 1.0) != 1.0
        self.dynamic = loss_scale == "dynamic"
        self.isfinite: Any = None if self.dynamic else True
        self.global_norm: torch.Tensor | None = None
        self.report: Report | None = None
        self._max_gradient_norm = _checked_norm("max_gradient_norm", max_gradient_norm)
        self._optimizers = list(optimizers)
        self._progress: dict[torch.optim.Optimizer, Progress] = {}
        self._skipped_steps = 0
        if not self.dynamic:
            if isinstance(loss_scale, str):
                raise ValueError(f'loss_scale={loss_scale!r}: it must be "dynamic" or a number')
            self._set_static(loss_scale or 1.0)
            return
        if half == "bfloat16":
            warnings.warn(
                "bfloat16 has the range of float32: its gradients need no loss scaling. Leave loss_scale out; "
                'gradscaler.Scaler("guard") checks them all the same.',
                stacklevel=2,
            )
        self._least = min_loss_scale or _LEAST
        if self._least < _LEAST:
            raise ValueError(f"min_loss_scale={min_loss_scale!r} is too small: it must be at least 2^-14")
        if not 0 <= overflow_tolerance < 1:
            why = "it must be from 0 to below 1, where overflows alone would never lower the scale"
            raise ValueError(f"overflow_tolerance={overflow_tolerance!r}: {why}")
        fields = {"max_scale": max_loss_scale, "init_scale": init_scale, "growth_interval": steps_per_increase}
        fields = {name: value for name, value in fields.items() if value}
        fields |= {"min_scale": self._least, "overflow_tolerance": overflow_tolerance}
        preset = "cerebras_cb16" if half == "cbfloat16" else "cerebras"
        self._scaler = Scaler(preset, **fields)
        self._without_floor = Policy(preset, **fields | {"min_scale": 0.0})
        self._unclamped: float | None = None

    def _set_static(self, scale: Any) -> None:
        self._static = _number("loss_scale", scale)
        self._scaler = Scaler("static", init_scale=self._static)

    # ---- the step ----

    def scale(self, loss: torch.Tensor) -> torch.Tensor:
        """Returns `loss` in float32, multiplied by the scale."""
        if any(progress.stage != OptState.READY for progress in self._progress.values()):
            raise RuntimeError("gradients were unscaled already: call update() before another loss is scaled")
        if not isinstance(loss, torch.Tensor):
            raise TypeError(f"loss must be a tensor, not {type(loss).__name__}")
        return loss.float() * self._scaler.loss_scale if self.loss_is_scaled else loss.float()

    def unscale_(self, optimizer: torch.optim.Optimizer) -> None:
        """Divides the gradients of `optimizer` by the scale, in place, once; later calls before update() do nothing."""
        progress = self._progress.get(optimizer) or Progress()
        if progress.stage == OptState.UNSCALED:
            return
        if progress.stage == OptState.STEPPED:
            raise RuntimeError("unscale_() is being called after step().")
        if self.dynamic and self.isfinite is not None:
            raise RuntimeError(
                "another optimizer has stepped: whether all gradients are finite was decided without these. Call "
                "unscale_() for each optimizer before the first step(), or name them all in optimizers=[...]"
            )
        grads = _optimizers.gradients(optimizer) if self.loss_is_scaled else {}
        if grads:
            progress.report = self._scaler.unscale(grads, want=Want.NORM)
        progress.stage = OptState.UNSCALED
        self._progress[optimizer] = progress

    def clip_gradients_and_return_isfinite(self, optimizers: Iterable[torch.optim.Optimizer]) -> Any:
        """Clips the gradients of `optimizers` by the norm of all unscaled gradients; returns whether it is finite."""
        if not self.dynamic:
            return True
        self._judge()
        if self._max_gradient_norm and not self.report.overflow:
            factor = self._scaler.clip_factor(self.report, self._max_gradient_norm, unscaled=True)
            if factor.inverse < 1:
                for optimizer in optimizers:
                    self._scaler.unscale(_optimizers.gradients(optimizer), factor=factor)
        return self.isfinite

    def _judge(self) -> None:
        reports = [progress.report for progress in self._progress.values() if progress.report is not None]
        if not reports:
            raise RuntimeError("no gradients were unscaled since the last update(): call backward() and step() before")
        self.report = Report.merge(reports, policy=self._scaler.policy)
        self.report._bad = {}
        for i, each in enumerate(reports):
            where = f"optimizer {i}, " if len(reports) > 1 else ""
            self.report._bad |= {f"{where}{name}": count for name, count in each.bad.items()}
        report = self.report
        norm = math.nan if report.nan_count else math.inf if report.overflow else report.norm
        self.global_norm = torch.tensor(norm, dtype=torch.float32)
        self.isfinite = torch.tensor(not report.overflow)

    def step_if_finite(self, optimizer: torch.optim.Optimizer, *args: Any, **kwargs: Any) -> Any:
        """Calls optimizer.step(*args, **kwargs); if a gradient of any optimizer is not finite, skips: returns None."""
        if self.dynamic:
            if self.isfinite is None:
                self.clip_gradients_and_return_isfinite([optimizer])
            if not self.isfinite:
                self._skipped_steps += 1
                return None
        return optimizer.step(*args, **kwargs)

    def step(self, optimizer: torch.optim.Optimizer, *args: Any, **kwargs: Any) -> Any:
        """Unscales the gradients that are not unscaled yet, and steps if the gradients of all optimizers are finite."""
        progress = self._progress.get(optimizer)
        if progress is not None and progress.stage == OptState.STEPPED:
            raise RuntimeError("step() has already been called since the last update().")
        for each in (*self._optimizers, optimizer):
            if each not in self._progress:
                self.unscale_(each)
        if self.dynamic and self.isfinite is None:
            self.clip_gradients_and_return_isfinite(list(self._progress))
        result = self.step_if_finite(optimizer, *args, **kwargs)
        self._progress[optimizer].stage = OptState.STEPPED
        return result

    def update(self, new_scale: None = None) -> None:
        """Moves the scale, after all optimizers have stepped. It refuses a new scale, as theirs does."""
        if new_scale:
            raise ValueError("new_scale: this scaler takes none; load_state_dict({'loss_scale': ...}) sets one")
        if self.dynamic:
            if self.isfinite is None:
                self._judge()
            free = State()
            c.gsc_state_update(None, self._without_floor, self._scaler.state, self.report, free)
            self._scaler.update(self.report)
            self._unclamped = free.next.scale
            self.isfinite = None
        self._progress = {}

    # ---- properties ----

    def get_scale(self) -> torch.Tensor | float:
        """Returns the loss scale: a float32 tensor if it is dynamic, else the number passed to the constructor."""
        return torch.tensor(self._scaler.loss_scale, dtype=torch.float32) if self.dynamic else self._static

    def get_non_clamped_scale(self) -> torch.Tensor | float:
        """Returns the scale after the last update without the limit of min_loss_scale."""
        if self.dynamic and self._unclamped is not None:
            return torch.tensor(self._unclamped, dtype=torch.float32)
        return self.get_scale()

    def get_num_skipped_steps(self) -> torch.Tensor:
        """Returns how many optimizer steps were skipped: two if two optimizers share a skipped step."""
        return torch.tensor(self._skipped_steps, dtype=torch.int64)

    def raise_if_unrecoverable(self) -> None:
        """Raises FloatingPointError if the last update had an overflow and could not lower the scale.

        A parameter or the loss itself is then NaN, and every further step would be skipped.
        """
        if self.dynamic and self._unclamped is not None and self.report.overflow and self._unclamped < self._least:
            raise FloatingPointError(
                f"gradients overflow at the smallest loss scale, {self._least:g}, so no scale will help: a parameter "
                f"or the loss is NaN. Not finite are the gradients of: "
                f"{', '.join(self.report.bad) or 'none, but their norm'}"
            )

    # ---- to and from a checkpoint ----

    def state_dict(self, destination: Any = None) -> dict[str, Any]:
        """Returns loss_scale, or if it is dynamic tensors: loss_scale, steps_since_rescale, overflows_since_rescale,
        num_skipped_steps.
        """
        if not self.dynamic:
            return {"loss_scale": self._static}
        counts = {key: torch.tensor(getattr(self._scaler.state, name)) for key, name in _COUNTS.items()}
        return {"loss_scale": self.get_scale(), **counts, "num_skipped_steps": self.get_num_skipped_steps()}

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Loads a state_dict; values without a key, as in old checkpoints, do not change."""
        found = {key: value.item() if isinstance(value, torch.Tensor) else value for key, value in state_dict.items()}
        scale = _positive("loss_scale", found.get("loss_scale", self._scaler.loss_scale))
        if not self.dynamic:
            if "loss_scale" in found:
                self._set_static(scale)
                self.loss_is_scaled = scale != 1.0
            return
        skipped = found.get("num_skipped_steps", self._skipped_steps)
        if not isinstance(skipped, int) or skipped < 0:
            raise ValueError(f"num_skipped_steps={skipped!r}: it must be a whole number of at least 0")
        self._scaler.set_scale(scale, **{name: found[key] for key, name in _COUNTS.items() if key in found})
        self._skipped_steps, self._unclamped = skipped, None

    def __getstate__(self) -> dict[str, Any]:
        if self._progress:
            raise RuntimeError("a GradScaler can be pickled or copied at the end of an iteration, after update()")
        return vars(self) | {"_optimizers": []}

    def __repr__(self) -> str:
        return f"<GradScaler: {self._scaler!r}>"


def optimizer_step(
    loss: torch.Tensor,
    optimizer: torch.optim.Optimizer | Iterable[torch.optim.Optimizer],
    grad_scaler: GradScaler,
    max_gradient_norm: float | None = None,
    max_gradient_value: float | None = None,
) -> None:
    """Calls backward, unscale, clip, step, update and zero_grad for one optimizer, or several that share the loss.

    Clips by the norm over all optimizers, or by value.
    """
    if not isinstance(loss, torch.Tensor):
        raise ValueError(f"loss must be one tensor, not {type(loss).__name__}")
    optimizers = [optimizer] if isinstance(optimizer, torch.optim.Optimizer) else list(optimizer)
    for each in optimizers:
        if not isinstance(each, torch.optim.Optimizer):
            raise TypeError(f"expected an optimizer, or a list of them, not {type(each).__name__}")
    if not isinstance(grad_scaler, GradScaler):
        raise TypeError(f"grad_scaler must be a gradscaler.cerebras.GradScaler, not {type(grad_scaler).__name__}")
    norm = _checked_norm("max_gradient_norm", max_gradient_norm)
    value = _checked_norm("max_gradient_value", max_gradient_value)
    if norm is not None and value is not None:
        raise ValueError("pass max_gradient_norm or max_gradient_value, not both")
    grad_scaler.scale(loss).backward()
    for each in optimizers:
        grad_scaler.unscale_(each)
    parameters = [p for each in optimizers for group in each.param_groups for p in group["params"]]
    if norm is not None:
        torch.nn.utils.clip_grad_norm_(parameters, norm)
    elif value is not None:
        torch.nn.utils.clip_grad_value_(parameters, value)
    for each in optimizers:
        grad_scaler.step(each)
    grad_scaler.update()
    for each in optimizers:
        each.zero_grad()


def _checked_norm(name: str, value: Any) -> float | None:
    if value is None:
        return None
    number = _number(name, value)
    if not number >= 0:
        raise ValueError(f"{name}={number!r}: it must be 0 or more")
    return number


def _half_dtype(given: str | torch.dtype | None) -> str:
    if given is None:
        theirs = sys.modules.get("cerebras.pytorch.amp")
        return theirs.get_half_dtype_str() if theirs else "float16"
    name = {"cb16": "cbfloat16"}.get(str(given), str(given).removeprefix("torch."))
    if name not in ("float16", "bfloat16", "cbfloat16"):
        raise ValueError(f"half_dtype={given!r}: it must be float16, bfloat16 or cbfloat16")
    return name
