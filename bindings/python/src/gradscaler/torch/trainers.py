# SPDX-License-Identifier: MIT
"""The scaler's metrics in the logger of a trainer, the names of parameters, and trainers that know of skipped steps.

    from gradscaler.torch import trainers

    lightning.Trainer(callbacks=[trainers.lightning_callback()], plugins=...)
    trainers.add_to_transformers(trainer)                                           # before trainer.train()
    metrics = trainers.accelerate_metrics(accelerator, model)                       # after accelerator.prepare()
    logger.attach_output_handler(                                                   # a logger of ignite
        engine, Events.ITERATION_COMPLETED(every=100), tag="training", output_transform=trainers.Metrics(scaler, model)
    )

A trainer knows nothing of a skip in a fused optimizer, or ignores every skip. These lines tell it, so that schedules,
averages and the count of steps go on only if a step was taken; each waits for a fused optimizer on a device:

    trainers.accelerate_skips(accelerator)                                          # after accelerator.prepare()
    trainers.transformers_skips(trainer)                                            # before trainer.train()
    lightning.Trainer(callbacks=[trainers.lightning_skips(), ...], plugins=...)     # as the first callback
    taken = trainers.ignite_skips(engine, scaler)                                   # an event, see there

Each needs a gradscaler.torch.GradScaler in the trainer; the error of another scaler has the line to add. Importing this
module imports no trainer.
"""

from __future__ import annotations

import importlib
import sys
from typing import Any

import torch

from ._scaler import GradScaler

__all__ = [
    "Metrics",
    "accelerate_metrics",
    "accelerate_skips",
    "add_to_transformers",
    "ignite_skips",
    "lightning_callback",
    "lightning_skips",
    "transformers_skips",
]
_REASON = "gradscaler/reason"
_LIGHTNING = 'Trainer(plugins=[MixedPrecision("16-mixed", "cuda", scaler=gradscaler.torch.GradScaler("cuda"))])'
_ACCELERATE = 'accelerator.scaler = gradscaler.torch.GradScaler("cuda"), before accelerator.prepare()'
_TRANSFORMERS = 'trainer.accelerator.scaler = gradscaler.torch.GradScaler("cuda"), before trainer.train()'
_OWN = 'scaler = gradscaler.torch.GradScaler("cuda")'


class Metrics:
    """A callable that returns the metrics of a scaler for a logger. Making it gives the scaler the parameters' names.

    scaler: the gradscaler.torch.GradScaler that trains; TypeError if it is another
    model: the module that is trained, also in DistributedDataParallel; see GradScaler.name_parameters
    text: True adds "gradscaler/reason" if a step was skipped, the sentence of the last skip, for loggers that take text

    A call returns the numbers of GradScaler.metrics as floats, under "gradscaler/loss_scale" and so on; none if the
    scaler is disabled. "gradscaler/skip" is 1 if any step since the last call was skipped. With a fused optimizer on a
    device the reason of a skip is known only if the last step was skipped.
    Each call waits for the device: call it only to log, in the thread that trains. It ignores arguments, because ignite
    gives it an output.
    """

    def __init__(self, scaler: GradScaler, model: torch.nn.Module, text: bool = False) -> None:
        self._scaler, self._text = _checked(scaler, _OWN), text
        self._scaler._last_skip = ""
        wrappers = torch.nn.parallel.DistributedDataParallel, torch.nn.DataParallel
        self._scaler.name_parameters(model.module if isinstance(model, wrappers) else model)
        self._skips = self._total_skips(self._scaler.metrics())

    def __call__(self, *_: Any) -> dict[str, Any]:
        metrics = self._scaler.metrics()
        before, self._skips = self._skips, self._total_skips(metrics)
        found: dict[str, Any] = {f"gradscaler/{name}": float(value) for name, value in metrics.items()}
        if self._skips > before:
            found["gradscaler/skip"] = 1.0
            reason, self._scaler._last_skip = self._scaler._last_skip or self._scaler.reason, ""
            if self._text and reason:
                found[_REASON] = reason
        return found

    def _total_skips(self, metrics: dict[str, float]) -> float:
        """Returns the skips since the start, also those that a checkpoint undid."""
        names = "total_overflows", "total_guard_skips", "total_bad_losses"
        return self._scaler._undone_skips + sum(metrics.get(name, 0) for name in names)


def lightning_callback() -> Any:
    """Returns a callback for Lightning's Trainer: it logs the metrics every `log_every_n_steps` steps.

    It is a callback of lightning.pytorch, or of pytorch_lightning if the program has imported only that. Training
    begins with a TypeError if the Trainer has another scaler.
    """

    class Callback(_lightning().Callback):
        def __reduce__(self) -> tuple:  # processes that are spawned get a pickle, which cannot name a local class
            return lightning_callback, ()

        def on_train_start(self, trainer: Any, pl_module: Any) -> None:
            self._metrics, self._step = Metrics(_scaler_of(trainer), pl_module, text=True), trainer.global_step

        def on_train_batch_end(self, trainer: Any, pl_module: Any, *_: Any) -> None:
            if trainer.global_step != self._step and trainer._logger_connector.should_update_logs:
                metrics = self._metrics()
                reason = metrics.pop(_REASON, "")
                pl_module.log_dict(metrics, on_step=True, on_epoch=False)
                for logger in trainer.loggers if reason else ():
                    _log_text(logger, reason, trainer.global_step - 1)
            self._step = trainer.global_step

    return Callback()


def lightning_skips() -> Any:
    """Returns a callback for Lightning's Trainer: a skipped step moves no schedule and no `trainer.global_step`.

    Put it before callbacks that look at global_step, such as WeightAveraging. Training begins with a TypeError if the
    Trainer has another scaler. With manual optimization it does nothing.
    """

    class Callback(_lightning().Callback):
        def __reduce__(self) -> tuple:
            return lightning_skips, ()

        def on_train_start(self, trainer: Any, pl_module: Any) -> None:
            self._scaler, self._step = _scaler_of(trainer), trainer.global_step
            for config in trainer.lr_scheduler_configs:
                config.scheduler = self._scaler.follow(config.scheduler)

        def on_train_batch_end(self, trainer: Any, pl_module: Any, *_: Any) -> None:
            loop = trainer.fit_loop.epoch_loop.automatic_optimization
            if trainer.global_step > self._step and pl_module.automatic_optimization and self._scaler.step_was_skipped:
                for counts in (loop.optim_progress.optimizer.step.total, loop.optim_progress.optimizer.step.current):
                    counts.ready, counts.completed = counts.ready - 1, counts.completed - 1
            self._step = trainer.global_step

        def on_train_end(self, trainer: Any, pl_module: Any) -> None:
            for config in trainer.lr_scheduler_configs:
                config.scheduler = getattr(config.scheduler, "target", config.scheduler)

    return Callback()


def _lightning() -> Any:
    packages = "lightning.pytorch", "pytorch_lightning"
    return importlib.import_module(next((name for name in packages if name in sys.modules), packages[0]))


def _scaler_of(trainer: Any) -> GradScaler:
    return _checked(getattr(trainer.precision_plugin, "scaler", None), _LIGHTNING)


def _log_text(logger: Any, text: str, step: int) -> None:
    """Writes to the loggers of Lightning that take text: TensorBoard, CSV and W&B."""
    if hasattr(logger.experiment, "add_text"):
        logger.experiment.add_text(_REASON, text, step)
    elif type(logger).__name__ in ("CSVLogger", "WandbLogger"):
        logger.log_metrics({_REASON: text}, step)


def add_to_transformers(trainer: Any) -> None:
    """Adds a callback to a Trainer of transformers: it adds the metrics to each log of the training loss.

    trainer: a transformers.Trainer, or one of a class made from it; training begins with a TypeError if its accelerator
        has another scaler

    The callback comes before all others, because reporters such as TensorBoard and W&B get the logs in the order of
    the callbacks; `trainer.add_callback` and `Trainer(callbacks=...)` would add it after them.
    """
    transformers = importlib.import_module("transformers")

    class Callback(transformers.TrainerCallback):
        metrics = None

        def on_train_begin(self, args: Any, state: Any, control: Any, model: Any = None, **_: Any) -> None:
            self.metrics = Metrics(_checked(trainer.accelerator.scaler, _TRANSFORMERS), model, text=True)

        def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **_: Any) -> None:
            if self.metrics is not None and "loss" in logs:  # an evaluation has no loss
                metrics = self.metrics()
                for receiver in (logs, *state.log_history[-1:]):  # the Trainer has copied them there
                    receiver.update(metrics)

    trainer.callback_handler.callbacks.insert(0, Callback())


def transformers_skips(trainer: Any) -> None:
    """Makes a skipped step move neither the schedule of a Trainer of transformers nor its `state.global_step`.

    trainer: as of add_to_transformers
    Then max_steps, logging_steps and so on count the steps that were taken, and nothing is logged, saved or evaluated
    at a skipped one. A run that resumes passes over as many batches as steps were taken.
    """
    transformers = importlib.import_module("transformers")

    class Callback(transformers.TrainerCallback):
        def on_train_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            _checked(trainer.accelerator.scaler, _TRANSFORMERS)
            accelerate_skips(trainer.accelerator)

        def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            if trainer.accelerator.optimizer_step_was_skipped:
                state.global_step -= 1
                control.should_log = control.should_save = control.should_evaluate = False
                control.should_training_stop &= state.global_step >= state.max_steps

    callbacks = trainer.callback_handler.callbacks
    after = [
        i for i, each in enumerate(callbacks) if isinstance(each, transformers.trainer_callback.DefaultFlowCallback)
    ]
    callbacks.insert(after[-1] + 1 if after else 0, Callback())


def accelerate_metrics(accelerator: Any, model: torch.nn.Module) -> Metrics:
    """Returns Metrics for accelerate: `accelerator.log({"loss": loss.item(), **metrics()}, step)`.

    accelerator: an accelerate.Accelerator; TypeError if it has another scaler
    model: the module that accelerator.prepare returned
    """
    return Metrics(_checked(accelerator.scaler, _ACCELERATE), accelerator.unwrap_model(model), text=True)


def accelerate_skips(accelerator: Any) -> None:
    """Sets `step_was_skipped` of the optimizers of accelerate also if they are fused: their schedules then wait.

    accelerator: an accelerate.Accelerator that has prepared its optimizers; TypeError if it has another scaler
    """
    _checked(accelerator.scaler, _ACCELERATE)
    for wrapper in accelerator._optimizers:

        def see(optimizer: torch.optim.Optimizer, *_: Any, wrapper: Any = wrapper) -> None:
            found = getattr(optimizer, "found_inf", None)
            if found is not None and found.item():
                wrapper._accelerate_step_called = False  # as if step() had not been called

        wrapper.optimizer.register_step_post_hook(see)


def ignite_skips(engine: Any, scaler: GradScaler) -> Any:
    """Returns an event of ignite that is fired after an iteration, unless its step was skipped.

        taken = trainers.ignite_skips(engine, scaler)
        engine.add_event_handler(taken, schedule)
        EMAHandler(model).attach(engine, event=taken)

    engine: the trainer, as of create_supervised_trainer
    engine.state.steps_taken counts the steps; `taken(every=100)` is each hundredth. TypeError if it is another scaler.
    """
    events = importlib.import_module("ignite.engine")
    _checked(scaler, _OWN)

    class Steps(events.EventEnum):
        TAKEN = "gradscaler_step_taken"

    engine.register_events(*Steps, event_to_attr={Steps.TAKEN: "steps_taken"})
    follower = scaler.follow(lambda: True)

    def after(engine: Any) -> None:
        if follower():
            engine.state.steps_taken += 1
            engine.fire_event(Steps.TAKEN)

    engine.add_event_handler(events.Events.ITERATION_COMPLETED, after)
    return Steps.TAKEN


def _checked(scaler: Any, line: str) -> GradScaler:
    if isinstance(scaler, GradScaler):
        return scaler
    kind = "None" if scaler is None else f"a {type(scaler).__module__}.{type(scaler).__qualname__}"
    raise TypeError(f"the scaler is {kind}, not a gradscaler.torch.GradScaler. Add the line: {line}")
