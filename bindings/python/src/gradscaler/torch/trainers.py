# SPDX-License-Identifier: MIT
"""The scaler's metrics in the logger of a trainer, and the names of the model's parameters in reports and errors.

    from gradscaler.torch import trainers

    lightning.Trainer(callbacks=[trainers.lightning_callback()], plugins=...)
    trainers.add_to_transformers(trainer)                                           # before trainer.train()
    metrics = trainers.accelerate_metrics(accelerator, model)                       # after accelerator.prepare()
    logger.attach_output_handler(                                                   # a logger of ignite
        engine, Events.ITERATION_COMPLETED(every=100), tag="training", output_transform=trainers.Metrics(scaler, model)
    )

Each needs a gradscaler.torch.GradScaler in the trainer; the error of another scaler has the line to add. Importing this
module imports no trainer.
"""

from __future__ import annotations

import importlib
import sys
from typing import Any

import torch

from ._scaler import GradScaler

__all__ = ["Metrics", "accelerate_metrics", "add_to_transformers", "lightning_callback"]


class Metrics:
    """A callable that returns the metrics of a scaler for a logger. Making it gives the scaler the parameters' names.

    scaler: the gradscaler.torch.GradScaler that trains; TypeError if it is another
    model: the module that is trained, also in DistributedDataParallel; see GradScaler.name_parameters

    A call returns the numbers of GradScaler.metrics as floats, under "gradscaler/loss_scale" and so on; none if the
    scaler is disabled. "gradscaler/skip" is 1 if any step since the last call was skipped.
    Each call waits for the device: call it only to log, in the thread that trains. It ignores arguments, because ignite
    gives it an output.
    """

    def __init__(self, scaler: GradScaler, model: torch.nn.Module) -> None:
        self._scaler = _checked(scaler, 'scaler = gradscaler.torch.GradScaler("cuda")')
        wrappers = torch.nn.parallel.DistributedDataParallel, torch.nn.DataParallel
        self._scaler.name_parameters(model.module if isinstance(model, wrappers) else model)
        self._skips = self._total_skips(self._scaler.metrics())

    def __call__(self, *_: Any) -> dict[str, float]:
        metrics = self._scaler.metrics()
        before, self._skips = self._skips, self._total_skips(metrics)
        if self._skips > before:
            metrics["skip"] = True
        return {f"gradscaler/{name}": float(value) for name, value in metrics.items()}

    def _total_skips(self, metrics: dict[str, float]) -> float:
        """Returns the skips since the start, also those that a checkpoint undid."""
        names = "total_overflows", "total_guard_skips", "total_bad_losses"
        return self._scaler._undone_skips + sum(metrics.get(name, 0) for name in names)


def lightning_callback() -> Any:
    """Returns a callback for Lightning's Trainer: it logs the metrics every `log_every_n_steps` steps.

    It is a callback of lightning.pytorch, or of pytorch_lightning if the program has imported only that. Training
    begins with a TypeError if the Trainer has another scaler.
    """
    packages = "lightning.pytorch", "pytorch_lightning"
    lightning = importlib.import_module(next((name for name in packages if name in sys.modules), packages[0]))

    class Callback(lightning.Callback):
        def __reduce__(self) -> tuple:  # processes that are spawned get a pickle, which cannot name a local class
            return lightning_callback, ()

        def on_train_start(self, trainer: Any, pl_module: Any) -> None:
            line = 'Trainer(plugins=[MixedPrecision("16-mixed", "cuda", scaler=gradscaler.torch.GradScaler("cuda"))])'
            scaler = _checked(getattr(trainer.precision_plugin, "scaler", None), line)
            self._metrics, self._step = Metrics(scaler, pl_module), trainer.global_step

        def on_train_batch_end(self, trainer: Any, pl_module: Any, *_: Any) -> None:
            if trainer.global_step != self._step and trainer._logger_connector.should_update_logs:
                pl_module.log_dict(self._metrics(), on_step=True, on_epoch=False)
            self._step = trainer.global_step

    return Callback()


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
            line = 'trainer.accelerator.scaler = gradscaler.torch.GradScaler("cuda"), before trainer.train()'
            self.metrics = Metrics(_checked(trainer.accelerator.scaler, line), model)

        def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **_: Any) -> None:
            if self.metrics is not None and "loss" in logs:  # an evaluation has no loss
                metrics = self.metrics()
                for receiver in (logs, *state.log_history[-1:]):  # the Trainer has copied them there
                    receiver.update(metrics)

    trainer.callback_handler.callbacks.insert(0, Callback())


def accelerate_metrics(accelerator: Any, model: torch.nn.Module) -> Metrics:
    """Returns Metrics for accelerate: `accelerator.log({"loss": loss.item(), **metrics()}, step)`.

    accelerator: an accelerate.Accelerator; TypeError if it has another scaler
    model: the module that accelerator.prepare returned
    """
    line = 'accelerator.scaler = gradscaler.torch.GradScaler("cuda"), before accelerator.prepare()'
    return Metrics(_checked(accelerator.scaler, line), accelerator.unwrap_model(model))


def _checked(scaler: Any, line: str) -> GradScaler:
    if isinstance(scaler, GradScaler):
        return scaler
    kind = "None" if scaler is None else f"a {type(scaler).__module__}.{type(scaler).__qualname__}"
    raise TypeError(f"the scaler is {kind}, not a gradscaler.torch.GradScaler. Add the line: {line}")
