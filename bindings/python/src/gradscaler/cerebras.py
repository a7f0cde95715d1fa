# SPDX-License-Identifier: MIT
"""Cerebras' GradScaler (cerebras.pytorch.amp) for the CPU and GPUs of torch, whose backend theirs does not need here.

    scaler = gradscaler.cerebras.GradScaler(loss_scale="dynamic")  # in place of cstorch.amp.GradScaler
    for inputs, labels in batches:
        optimizer_step(loss_of(model(inputs), labels), optimizer, scaler)

Differences, each because the original loses something:

- Off their machines theirs scales nothing and saves nothing; this one does. It has no registry of all optimizers: those
  of one step are unscaled before the first of them steps, or named in `optimizers`.
- A skipped step does not run, so that nothing has to be restored: parameters, the optimizer's state, and what its first
  step would have created. Theirs runs it and puts back what it knows of.
- Gradients may be accumulated over several scaled losses. step() unscales what unscale_() did not.
- Squares of float16 gradients are added in float32 and double: a norm above 256 is no overflow.
- get_scale() returns a new tensor each time; theirs is written by the next update.
- A floor above the ceiling and saved values that no scaler has are refused.
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
from ._optimizers import Round
from ._policy import Policy
from ._report import Report
from ._scaler import Scaler
from ._structs import State, Want

__all__ = ["GradScaler", "optimizer_step"]

_LEAST = 2.0**-14
_COUNTS = {"steps_since_rescale": "steps_since_change", "overflows_since_rescale": "overflows_since_reset"}


class GradScaler:
    """cerebras.pytorch.amp.GradScaler.

    loss_scale: "dynamic", or a number, by which losses are then scaled without any check; None is 1
    init_scale (initial_loss_scale in their documentation): default 2^15, of cbfloat16 2^31
    steps_per_increase: the scale doubles after this many steps and one more, overflows among them; default 2000
    min_loss_scale, max_loss_scale: default 2^-14, and 2^15 for float16 or 2^31 for cbfloat16. Their documentation
        writes 2e-14, 2e15 and 2e31 and means these
    overflow_tolerance: the share of steps with an overflow since the scale last changed above which it is halved
    max_gradient_norm: clips the gradients of all optimizers by their common norm before they step
    half_dtype: "float16", "bfloat16" or "cbfloat16", or torch's; default that of cerebras.pytorch where it is imported,
        else float16
    optimizers: those that share a step, if step() is called without unscale_() for each before

    A step overflows where a gradient of any optimizer is Inf or NaN, or the sum of all squares is more than a float32
    holds; then none of them steps. One thread at a time may use a scaler.
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
        self._rounds: dict[torch.optim.Optimizer, Round] = {}
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
        """`loss` in float32, times the scale."""
        if any(turn.stage != OptState.READY for turn in self._rounds.values()):
            raise RuntimeError("gradients were unscaled already: call update() before another loss is scaled")
        if not isinstance(loss, torch.Tensor):
            raise TypeError(f"loss must be a tensor, not {type(loss).__name__}")
        return loss.float() * self._scaler.loss_scale if self.loss_is_scaled else loss.float()

    def unscale_(self, optimizer: torch.optim.Optimizer) -> None:
        """Divides the gradients of `optimizer` by the scale, in place, once; later calls before update() do nothing."""
        turn = self._rounds.get(optimizer) or Round()
        if turn.stage == OptState.UNSCALED:
            return
        if turn.stage == OptState.STEPPED:
            raise RuntimeError("unscale_() is being called after step().")
        if self.dynamic and self.isfinite is not None:
            raise RuntimeError(
                "another optimizer has stepped: whether all gradients are finite was decided without these. Call "
                "unscale_() for each optimizer before the first step(), or name them all in optimizers=[...]"
            )
        grads = _optimizers.gradients(optimizer) if self.loss_is_scaled else {}
        if grads:
            turn.report = self._scaler.unscale(grads, want=Want.NORM)
        turn.stage = OptState.UNSCALED
        self._rounds[optimizer] = turn

    def clip_gradients_and_return_isfinite(self, optimizers: Iterable[torch.optim.Optimizer]) -> Any:
        """Whether the norm of all that was unscaled is finite; and clips the gradients of `optimizers` by it."""
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
        turns = [turn.report for turn in self._rounds.values() if turn.report is not None]
        if not turns:
            raise RuntimeError("no gradients were unscaled since the last update(): call backward() and step() before")
        self.report = Report.merge(turns, policy=self._scaler.policy)
        self.report._bad = {}
        for i, each in enumerate(turns):
            where = f"optimizer {i}, " if len(turns) > 1 else ""
            self.report._bad |= {f"{where}{name}": count for name, count in each.bad.items()}
        report = self.report
        norm = math.nan if report.nan_count else math.inf if report.overflow else report.norm
        self.global_norm = torch.tensor(norm, dtype=torch.float32)
        self.isfinite = torch.tensor(not report.overflow)

    def step_if_finite(self, optimizer: torch.optim.Optimizer, *args: Any, **kwargs: Any) -> Any:
        """optimizer.step(*args, **kwargs), or None where a gradient of any optimizer is not finite."""
        if self.dynamic:
            if self.isfinite is None:
                self.clip_gradients_and_return_isfinite([optimizer])
            if not self.isfinite:
                self._skipped_steps += 1
                return None
        return optimizer.step(*args, **kwargs)

    def step(self, optimizer: torch.optim.Optimizer, *args: Any, **kwargs: Any) -> Any:
        """Unscales what is not unscaled yet, and steps if the gradients of all optimizers are finite."""
        turn = self._rounds.get(optimizer)
        if turn is not None and turn.stage == OptState.STEPPED:
            raise RuntimeError("step() has already been called since the last update().")
        for each in (*self._optimizers, optimizer):
            if each not in self._rounds:
                self.unscale_(each)
        if self.dynamic and self.isfinite is None:
            self.clip_gradients_and_return_isfinite(list(self._rounds))
        result = self.step_if_finite(optimizer, *args, **kwargs)
        self._rounds[optimizer].stage = OptState.STEPPED
        return result

    def update(self, new_scale: None = None) -> None:
        """Moves the scale, after all optimizers have stepped. A new scale is refused, as theirs does."""
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
        self._rounds = {}

    # ---- what it is ----

    def get_scale(self) -> torch.Tensor | float:
        """The loss scale: a float32 tensor if it is dynamic, else the number that was given."""
        return torch.tensor(self._scaler.loss_scale, dtype=torch.float32) if self.dynamic else self._static

    def get_non_clamped_scale(self) -> torch.Tensor | float:
        """What the last update made of the scale before min_loss_scale held it."""
        if self.dynamic and self._unclamped is not None:
            return torch.tensor(self._unclamped, dtype=torch.float32)
        return self.get_scale()

    def get_num_skipped_steps(self) -> torch.Tensor:
        """How many steps of optimizers were skipped: two for two optimizers that share one."""
        return torch.tensor(self._skipped_steps, dtype=torch.int64)

    def raise_if_unrecoverable(self) -> None:
        """Raises FloatingPointError where the last update found an overflow and had no smaller scale to go to.

        Then a parameter or the loss itself is NaN, and every further step would be skipped.
        """
        if self.dynamic and self._unclamped is not None and self.report.overflow and self._unclamped < self._least:
            raise FloatingPointError(
                f"gradients overflow at the smallest loss scale, {self._least:g}, so no scale will help: a parameter "
                f"or the loss is NaN. Not finite are the gradients of: "
                f"{', '.join(self.report.bad) or 'none, but their norm'}"
            )

    # ---- to and from a checkpoint ----

    def state_dict(self, destination: Any = None) -> dict[str, Any]:
        """loss_scale, and if it is dynamic steps_since_rescale, overflows_since_rescale, num_skipped_steps: tensors."""
        if not self.dynamic:
            return {"loss_scale": self._static}
        counts = {key: torch.tensor(getattr(self._scaler.state, name)) for key, name in _COUNTS.items()}
        return {"loss_scale": self.get_scale(), **counts, "num_skipped_steps": self.get_num_skipped_steps()}

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Restores what state_dict returned; keys that are not there leave what is: old checkpoints have none."""
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
        if self._rounds:
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
    """Backward, unscale, clip, step, update and zero_grad, of one optimizer or several that share the loss.

    Gradients are clipped by the norm over all optimizers, or by value, before they step.
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
