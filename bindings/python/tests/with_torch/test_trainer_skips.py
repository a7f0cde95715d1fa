# SPDX-License-Identifier: MIT
"""After a run with overflows a trainer's schedule, average and count of steps are as without these batches."""

import programs
import pytest
import torch
from torch.optim import lr_scheduler, swa_utils

from gradscaler.torch import GradScaler, trainers

GOOD, BAD = 9, (0, 4, 9)


def data(bad):
    """Returns batches; the bad ones are infinite."""
    draw = torch.Generator().manual_seed(0)
    batches = [{"x": torch.randn(4, generator=draw)} for _ in range(GOOD)]
    for i in bad:
        batches.insert(i, {"x": torch.full((4,), torch.inf)})
    return batches


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.ones(4))

    def forward(self, x):
        return {"loss": (self.weight * x - 1).square().mean()}


class Run:
    """The parts of a training, and where its trainer leaves what it did."""

    def __init__(self, fused):
        programs.quiet()
        self.model, self.scaler = Net(), GradScaler("cpu", policy="static", init_scale=1024.0)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=0.1, fused=fused)
        self.schedule = lr_scheduler.CosineAnnealingLR(self.optimizer, 20)
        self.average, self.steps = swa_utils.AveragedModel(self.model), None

    def result(self):
        parts = self.schedule, self.average, self.optimizer, self.model
        return self.steps, [str(part.state_dict()) for part in parts]


def accelerate(run, batches):
    from accelerate import Accelerator

    accelerator = Accelerator(cpu=True, mixed_precision="fp16")
    accelerator.native_amp, accelerator.scaler = True, run.scaler
    model, optimizer, schedule = accelerator.prepare(run.model, run.optimizer, run.schedule)
    trainers.accelerate_skips(accelerator)
    run.steps = 0
    for batch in batches:
        accelerator.backward(model(**batch)["loss"])
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()
        if not optimizer.step_was_skipped:
            run.steps += 1
            run.average.update_parameters(run.model)
    accelerator.free_memory()


def transformers(run, batches):
    import transformers

    class Trainer(transformers.Trainer):
        def _get_train_sampler(self, *_):
            return torch.utils.data.SequentialSampler(batches)

    class Average(transformers.TrainerCallback):
        def on_step_end(self, args, state, control, **_):
            if state.global_step > (run.steps or 0):
                run.average.update_parameters(run.model)
            run.steps = state.global_step

    logged = []

    class Reporter(transformers.TrainerCallback):
        def on_log(self, args, state, control, logs=None, **_):
            logged.append(state.global_step)

    arguments = transformers.TrainingArguments(
        output_dir="/nonexistent", use_cpu=True, fp16=True, max_steps=GOOD, disable_tqdm=True, save_strategy="no",
        per_device_train_batch_size=1, report_to=[], remove_unused_columns=False, max_grad_norm=0.0, logging_steps=1,
    )  # fmt: skip
    optimizers = run.optimizer, run.schedule
    trainer = Trainer(
        run.model, arguments, train_dataset=batches, optimizers=optimizers, callbacks=[Average(), Reporter()]
    )
    trainer.accelerator.native_amp, trainer.accelerator.scaler = True, run.scaler
    trainers.transformers_skips(trainer)
    trainer.train()
    assert trainer.state.global_step == run.steps and logged == [*range(1, GOOD + 1), GOOD]


def lightning(run, batches):
    from lightning.pytorch.callbacks import WeightAveraging

    class Average(WeightAveraging):
        def on_train_batch_end(self, trainer, *arguments):
            super().on_train_batch_end(trainer, *arguments)
            run.average, run.steps = self._average_model, trainer.global_step

        def on_train_end(self, *_):
            """Leaves the model as it is."""

    options = {"callbacks": [trainers.lightning_skips(), Average()], "gradient_clip_val": None}
    programs.lightning_module(run, batches, **options)


def ignite(run, batches):
    from ignite.engine import create_supervised_trainer

    trainer = create_supervised_trainer(
        run.model, run.optimizer, lambda loss, _: loss, amp_mode="amp", scaler=run.scaler,
        prepare_batch=lambda batch, *_, **__: (batch, None), model_fn=lambda model, batch: model(**batch)["loss"],
    )  # fmt: skip
    taken, every_third = trainers.ignite_skips(trainer, run.scaler), []
    trainer.add_event_handler(taken, lambda: run.schedule.step())
    trainer.add_event_handler(taken, lambda: run.average.update_parameters(run.model))
    trainer.add_event_handler(taken(every=3), lambda: every_third.append(trainer.state.steps_taken))
    trainer.run(batches)
    run.steps = trainer.state.steps_taken
    assert every_third == [3, 6, 9]


TRAINERS = {each.__name__: each for each in (accelerate, transformers, lightning, ignite)}


@pytest.mark.parametrize("fused", [False, True], ids=["plain", "fused"])
@pytest.mark.parametrize("trainer", TRAINERS)
def test_schedule_average_and_steps_are_as_without_the_skipped_batches(trainer, fused):
    pytest.importorskip(trainer)
    found = []
    for bad in BAD, ():
        run = Run(fused)
        TRAINERS[trainer](run, data(bad))
        found.append(run.result())
    assert found[0] == found[1] and found[0][0] == GOOD
