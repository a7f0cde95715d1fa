# SPDX-License-Identifier: MIT
"""RoundPipe's GradScaler: torch's rules for an optimizer that runs on another thread, one step behind.

    scaler = gradscaler.roundpipe.GradScaler()  # in place of roundpipe.GradScaler()
    for inputs, labels in batches:
        scaler.scale(loss_of(model(inputs), labels)).backward()
        model.step(lambda: (scaler.step(optimizer), optimizer.zero_grad()))  # on the optimizer's thread
        scaler.update()

If `roundpipe` is imported, that thread is RoundPipe's optimizer stream. Else all scalers of the process share one
thread, `scaler.executor`; call its `submit` instead of `model.step`.

Differences from RoundPipe's class:

- An exception on the optimizer's thread is raised by the call that waits for it, or by the next call on the scaler, and
  the scale does not change; RoundPipe ends the process. RoundPipe still handles exceptions inside model.step.
- step() returns the optimizer's result on any thread. state_dict, load_state_dict, pickling, is_enabled, `report`
  (which parameter overflowed) and `device` are new. It and torch.amp.GradScaler read each other's checkpoints.
- Several threads can call it, also update().
- It refuses factors and scales that lead out of range: a growth_factor below 1, a negative new_scale.
- Gradients in float64 are divided by the scale; RoundPipe multiplies by the inverse in float32.
"""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from typing import Any

import torch
from torch.amp.grad_scaler import OptState

from . import _gradscaler as c
from . import _optimizers
from ._arguments import _number
from ._optimizers import Progress
from ._policy import Policy
from ._report import Report
from ._scaler import Scaler
from ._structs import Factor

__all__ = ["GradScaler", "OptimizerThread", "RoundPipeStream"]

_FIELDS = ("growth_factor", "backoff_factor", "growth_interval")


class OptimizerThread(ThreadPoolExecutor):
    """One thread that runs the submitted functions in order."""

    def __init__(self, name: str = "gradscaler optimizer") -> None:
        self._ident: int | None = None
        super().__init__(1, name, initializer=self._begin)

    def _begin(self) -> None:
        self._ident = threading.get_ident()

    def is_current(self) -> bool:
        """Returns whether the caller runs on this thread."""
        return threading.get_ident() == self._ident


class RoundPipeStream:
    """RoundPipe's optimizer stream as an executor. If a submitted function raises, the process goes on."""

    def __init__(self) -> None:
        from roundpipe import optim_stream

        self._stream = optim_stream

    def submit(self, fn: Callable, /, *args: Any, **kwargs: Any) -> Future:
        future: Future = Future()
        self._stream.launch_optim_kernel(_run, future, fn, args, kwargs)
        return future

    def is_current(self) -> bool:
        return self._stream.on_optim_stream()


def _run(future: Future, fn: Callable, args: tuple, kwargs: Mapping[str, Any]) -> None:
    try:
        future.set_result(fn(*args, **kwargs))
    except BaseException as error:
        future.set_exception(error)


_shared: OptimizerThread | None = None
_sharing = threading.Lock()


def _default() -> Any:
    """Returns RoundPipe's stream if roundpipe is imported, else a thread that all scalers of the process share."""
    global _shared
    if "roundpipe.optim_stream" in sys.modules:
        return RoundPipeStream()
    with _sharing:
        if _shared is None:
            _shared = OptimizerThread()
        return _shared


def _forked() -> None:
    """Resets thread and lock in a forked child: it does not have the thread, and the lock may have been held."""
    global _shared, _sharing
    _shared, _sharing = None, threading.Lock()


if hasattr(os, "register_at_fork"):  # Windows has no fork
    os.register_at_fork(after_in_child=_forked)


class GradScaler:
    """A replacement for roundpipe.GradScaler that raises errors in the caller and can be saved.

    init_scale, growth_factor, backoff_factor, growth_interval, enabled: as in torch.amp.GradScaler
    device: the device of the losses, where scale() copies nothing. Gradients can be on any device
    executor: runs the optimizer's half in order on one thread, and its submit(fn, *args) returns a Future, such as
        OptimizerThread() or ThreadPoolExecutor(1). None: RoundPipe's own, or one that all scalers of the process share

    Any thread can call it. On the optimizer's thread a call acts at once. From another thread, unscale_() and step()
    run on the optimizer's thread, and the caller waits. An asynchronous update, also of a new_scale, takes effect one
    update later: scale() multiplies a loss by the scale that its gradients will be divided by.
    """

    def __init__(
        self,
        init_scale: float = 2.0**16,
        growth_factor: float = 2.0,
        backoff_factor: float = 0.5,
        growth_interval: int = 2000,
        enabled: bool = True,
        *,
        device: str | torch.device = "cpu",
        executor: Executor | Any = None,
    ) -> None:
        if growth_factor <= 1.0:
            raise AssertionError("The growth factor must be > 1.0.")
        if backoff_factor >= 1.0:
            raise AssertionError("The backoff factor must be < 1.0.")
        if executor is not None and not callable(getattr(executor, "submit", None)):
            raise TypeError(f"executor has no submit(fn, *args): {type(executor).__name__} is no executor")
        if getattr(executor, "_max_workers", 1) != 1:
            raise ValueError("executor has several threads, but steps must run in order: give it one")
        self.enabled = bool(enabled)
        self._device = torch.device(device)
        fields = dict(zip(_FIELDS, (growth_factor, backoff_factor, growth_interval), strict=True))
        self._begin(Scaler("roundpipe", init_scale=init_scale, **fields), executor)

    def _begin(self, scaler: Scaler, executor: Any) -> None:
        self._scaler = scaler  # used only on the optimizer's thread, except `next_factor` between two updates
        self._progress: dict[torch.optim.Optimizer, Progress] = {}  # used only on the optimizer's thread
        self._report: Report | None = None
        self._updating = threading.Lock()
        self._update: Future | None = None  # the last update
        self._raised: Future | None = None  # the update with an error that was already raised
        self._executor = executor
        self._ident: int | None = None
        self._publish(scaler.factor)
        if executor is not None and not hasattr(executor, "is_current"):
            executor.submit(self._keep_ident)  # runs before everything that is submitted later

    def _keep_ident(self) -> None:
        self._ident = threading.get_ident()

    def _publish(self, factor: Factor) -> None:
        """Sets the scale that the next losses are multiplied by."""
        self._published = factor.scale, self._tensor(factor)

    def _tensor(self, factor: Factor) -> torch.Tensor:
        return torch.tensor(factor.scale_f32, dtype=torch.float32, device=self._device)

    # ---- the two threads ----

    @property
    def executor(self) -> Any:
        """The executor that runs the optimizer's half."""
        return _default() if self._executor is None else self._executor

    def _is_on_executor(self) -> bool:
        executor = self.executor
        if hasattr(executor, "is_current"):
            return executor.is_current()
        return threading.get_ident() == self._ident

    def _on_executor(self, fn: Callable, *args: Any, **kwargs: Any) -> Any:
        """Runs `fn` on the optimizer's thread, after everything submitted before, and returns its result."""
        if self._is_on_executor():
            return fn(*args, **kwargs)
        self._raise_late(wait=True)
        return self.executor.submit(fn, *args, **kwargs).result()

    def _raise_late(self, wait: bool = False) -> None:
        """If the last update has ended with an error, raises it once. `wait`: first waits for the update's end."""
        update = self._update
        if update is None or not (wait or update.done()):
            return
        if not update.done() and self._process != os.getpid():
            raise RuntimeError(
                "this process was forked while an update was under way, which ends in its parent: fork before "
                "update(), or after update(is_async=False)"
            )
        error = update.exception()
        if error is not None and self._raised is not update:
            self._raised = update
            raise error

    # ---- the step ----

    def scale(self, outputs: Any) -> Any:
        """Multiplies a tensor, or an iterable of tensors, by the scale; does nothing if scaling is disabled."""
        if not self.enabled:
            return outputs
        if self._is_on_executor():
            return _optimizers.scale_outputs(outputs, self._tensor(self._scaler.factor))
        self._raise_late()
        return _optimizers.scale_outputs(outputs, self._published[1])

    def unscale_(self, optimizer: torch.optim.Optimizer) -> None:
        """Divides the gradients of `optimizer` by the scale of their loss and checks them, before step() does so."""
        if self.enabled:
            self._on_executor(self._unscale, optimizer)

    def _unscale(self, optimizer: torch.optim.Optimizer) -> None:
        progress = self._progress.setdefault(optimizer, Progress())
        if progress.stage is OptState.UNSCALED:
            raise RuntimeError("unscale_() has already been called on this optimizer since the last update().")
        if progress.stage is OptState.STEPPED:
            raise RuntimeError("unscale_() is being called after step().")
        grads = _optimizers.gradients(optimizer)
        for name, grad in grads.items():
            if grad.dtype is torch.float16:
                raise ValueError(
                    f"Attempting to unscale FP16 gradients: the gradient of {name} is float16, and small values would "
                    "be lost. Give the optimizer parameters in float32."
                )
        if grads:
            self._report = progress.report = self._scaler.unscale(grads)
        progress.stage = OptState.UNSCALED

    def step(self, optimizer: torch.optim.Optimizer, *args: Any, **kwargs: Any) -> Any:
        """Unscales the gradients if unscale_() did not, and calls optimizer.step(*args, **kwargs) if all are finite.

        Returns the optimizer's result, or None if the step was skipped.
        """
        if not self.enabled:
            return optimizer.step(*args, **kwargs)
        return self._on_executor(self._step, optimizer, *args, **kwargs)

    def _step(self, optimizer: torch.optim.Optimizer, *args: Any, **kwargs: Any) -> Any:
        if "closure" in kwargs:
            raise RuntimeError("Closure use is not currently supported if GradScaler is enabled.")
        progress = self._progress.setdefault(optimizer, Progress())
        if progress.stage is OptState.STEPPED:
            raise RuntimeError("step() has already been called since the last update().")
        if progress.stage is OptState.READY:
            self._unscale(optimizer)
        if progress.report is None:
            raise AssertionError("No inf checks were recorded for this optimizer.")
        result = None if progress.report.overflow else optimizer.step(*args, **kwargs)
        progress.stage = OptState.STEPPED
        return result

    def update(self, new_scale: float | torch.Tensor | None = None, is_async: bool = True) -> None:
        """Moves the scale by the steps since the last update. It runs after them, on the optimizer's thread.

        The caller waits only for the update before, because the next losses use its scale. With is_async=False it waits
        for this update, which then takes effect at once. new_scale sets the scale instead; counts stay.
        Call it once per step, on a thread that scales losses, after you submit the step.
        """
        if not self.enabled:
            return
        if self._is_on_executor():
            raise RuntimeError("update() is for the thread that scales the losses: call it after submitting the step")
        scale = None if new_scale is None else _checked_scale(new_scale)
        with self._updating:
            self._raise_late(wait=True)
            self._publish(self._scaler.next_factor)
            self._update, self._process = self.executor.submit(self._advance, scale, is_async), os.getpid()
            if not is_async:
                self._raise_late(wait=True)
                self._publish(self._scaler.factor)

    def _advance(self, scale: float | None, is_async: bool) -> None:
        published = self._scaler.next_factor  # scales the losses since update() was called
        try:
            if scale is not None:
                self._scaler.set_scale(scale)
            else:
                reports = [progress.report for progress in self._progress.values() if progress.report is not None]
                if not reports:
                    raise AssertionError("No inf checks were recorded prior to update.")
                self._scaler.update(reports)
            self._progress = {}
        finally:  # an error does not change `next`, so the published factor stays right
            self._scaler.state.factor = published if is_async else self._scaler.next_factor

    # ---- properties ----

    def get_scale(self) -> float:
        """Returns the scale that scale() uses on this thread; 1.0 if scaling is disabled."""
        if not self.enabled:
            return 1.0
        return self._scaler.loss_scale if self._is_on_executor() else self._published[0]

    def is_enabled(self) -> bool:
        return self.enabled

    @property
    def report(self) -> Report | None:
        """The report on the gradients that were unscaled last; `report.bad` names the overflowed ones."""
        return self._report

    @property
    def total_overflows(self) -> int:
        """Updates with an overflow so far; an update that waits for the optimizer's thread does not count yet."""
        return self._scaler.total_overflows

    def _get(self, name: str, up_to_date: bool) -> Any:
        if up_to_date:
            self._on_executor(lambda: None)
        return getattr(self._scaler.policy, name)

    def _set(self, name: str, value: float) -> None:
        Policy("roundpipe", **{name: value})  # raises errors in the caller
        if self._is_on_executor():
            setattr(self._scaler.policy, name, value)
        else:
            self.executor.submit(lambda: setattr(self._scaler.policy, name, value))

    def get_growth_factor(self, up_to_date: bool = False) -> float:
        """Returns the growth factor. up_to_date: waits for everything submitted before; likewise the other getters."""
        return self._get("growth_factor", up_to_date)

    def set_growth_factor(self, new_factor: float) -> None:
        """Sets the growth factor after everything submitted before; likewise the other setters."""
        self._set("growth_factor", new_factor)

    def get_backoff_factor(self, up_to_date: bool = False) -> float:
        return self._get("backoff_factor", up_to_date)

    def set_backoff_factor(self, new_factor: float) -> None:
        self._set("backoff_factor", new_factor)

    def get_growth_interval(self, up_to_date: bool = False) -> int:
        return self._get("growth_interval", up_to_date)

    def set_growth_interval(self, new_interval: int) -> None:
        self._set("growth_interval", new_interval)

    # ---- to and from a checkpoint ----

    def state_dict(self) -> dict[str, Any]:
        """Returns torch's keys, and `saved` with the whole state, after everything submitted before.

        `saved` also has a scale that is not in force yet. The dict is empty if scaling is disabled.
        """
        return self._on_executor(self._state) if self.enabled else {}

    def _state(self) -> dict[str, Any]:
        policy, state = self._scaler.policy, self._scaler.state
        numbers = {name: getattr(policy, name) for name in _FIELDS}
        saved = c.gsc_state_save(policy, state).hex()
        return {"scale": state.factor.scale, **numbers, "_growth_tracker": state.good_steps, "saved": saved}

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Loads a state_dict() of this class or of torch.amp.GradScaler; an error changes nothing."""
        if not self.enabled:
            return
        if len(state_dict) == 0:
            raise RuntimeError(
                "The source state dict is empty, possibly because it was saved from a disabled instance of GradScaler."
            )
        scaler = Scaler("roundpipe")
        if "saved" in state_dict:
            scaler.load_state_dict({"preset": "roundpipe", "saved": state_dict["saved"]})
        else:
            scaler.policy = Policy("roundpipe", **{name: state_dict[name] for name in _FIELDS})
            scaler.set_scale(_checked_scale(state_dict["scale"]), good_steps=int(state_dict["_growth_tracker"]))
        self._on_executor(self._replace, scaler)

    def _replace(self, scaler: Scaler) -> None:
        self._scaler, self._progress = scaler, {}
        self._publish(scaler.factor)

    def __getstate__(self) -> dict[str, Any]:
        scaler, progress = self._on_executor(lambda: (self._scaler.__getstate__(), self._progress))
        if progress:
            raise AssertionError("a GradScaler can be pickled at the end of an iteration, after update()")
        return {"enabled": self.enabled, "device": self._device, "scaler": scaler}

    def __setstate__(self, saved: Mapping[str, Any]) -> None:
        """Restores a pickle, which has no executor: the copy has the default one."""
        scaler = Scaler.__new__(Scaler)
        scaler.__setstate__(saved["scaler"])
        self.enabled, self._device = saved["enabled"], saved["device"]
        self._begin(scaler, None)

    def __repr__(self) -> str:
        return f"<GradScaler: {self._scaler!r}>" if self.enabled else "<GradScaler: disabled>"


def _checked_scale(scale: float | torch.Tensor) -> float:
    if isinstance(scale, torch.Tensor):
        if scale.numel() != 1 or scale.requires_grad:
            raise AssertionError("new_scale should be a float or a 1-element tensor with requires_grad=False.")
        scale = scale.item()
    number = _number("new_scale", scale)
    Scaler("roundpipe").set_scale(number)  # raises errors in the caller
    return number
