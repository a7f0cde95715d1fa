# SPDX-License-Identifier: MIT
"""Loggers of trainers get the scaler's metrics, and its reports name parameters. Each run skips two of its 6 steps."""

import csv
import math
import pickle

import programs
import pytest
import torch
from planted import Overflow
from support import run_python

from gradscaler.torch import GradScaler, trainers

STEPS, BAD, EVERY = 6, (0, 5), 2  # the first step, which no log is of, and the last one


class Counted(GradScaler):
    """Counts how often a device would be waited for."""

    asked = 0

    def metrics(self):
        self.asked += 1
        return super().metrics()


def made():
    programs.quiet()
    return Counted("cpu", 1024.0), programs.Gpt(BAD)


def assert_logged(received, scaler, model):
    """`received` are the dicts that a logger got, one each EVERY steps."""
    assert [float(log["gradscaler/skip"]) for log in received] == [1, 0, 1]
    assert [float(log["gradscaler/loss_scale"]) for log in received] == [512, 512, 256]
    assert [float(log["gradscaler/total_overflows"]) for log in received] == [1, 1, 2]
    for log in received:
        assert (log.get("gradscaler/reason") or "none").startswith(
            "skipped: " if float(log["gradscaler/skip"]) else "none"
        )
    assert scaler.asked == 1 + len(received)  # at the start, and when it is logged
    assert scaler.report.bad and set(scaler.report.bad) <= {name for name, _ in model.named_parameters()}


@pytest.mark.parametrize("accumulate", [1, 2])
def test_lightning(tmp_path, accumulate):
    pytest.importorskip("lightning")
    from lightning.pytorch.loggers import CSVLogger

    scaler, model = made()
    model.bad = (0, STEPS * accumulate - 1)
    module, logger = programs.lightning_trainer(
        model, scaler, STEPS * accumulate, callbacks=[pickle.loads(pickle.dumps(trainers.lightning_callback()))],
        log_every_n_steps=EVERY, accumulate_grad_batches=accumulate, logger=CSVLogger(tmp_path),
    )  # fmt: skip
    with open(f"{logger.log_dir}/metrics.csv") as file:
        rows = list(csv.DictReader(file))
    reasons = {row["step"]: row["gradscaler/reason"] for row in rows if row["gradscaler/reason"]}
    rows = [row | {"gradscaler/reason": reasons.get(row["step"])} for row in rows if row["loss"]]
    assert [row["step"] for row in rows] == ["1", "3", "5"] and all(row["loss"] for row in rows)
    assert_logged(rows, scaler, module)


def test_transformers():
    transformers = pytest.importorskip("transformers")
    received = []

    class Reporter(transformers.TrainerCallback):
        """Like the callbacks of report_to, it is there before a callback can be added."""

        def on_log(self, args, state, control, logs=None, **_):
            received.append(dict(logs))

    scaler, model = made()
    model.bad = (0, 7)  # an evaluation after each second step is also a call
    trainer = programs.transformers_trainer(
        model, scaler, trainers.add_to_transformers, [Reporter()], STEPS,
        logging_strategy="steps", logging_steps=EVERY, eval_strategy="steps", eval_steps=EVERY,
    )  # fmt: skip
    logs, others = ([log for log in received if ("loss" in log) is training] for training in (True, False))
    assert_logged(logs, scaler, model)
    assert "eval_loss" in others[0] and not any("gradscaler" in name for log in others for name in log)
    assert_logged([log for log in trainer.state.log_history if "loss" in log], scaler, model)


def test_accelerate():
    pytest.importorskip("accelerate")
    from accelerate.tracking import GeneralTracker

    received = []

    class Tracker(GeneralTracker):
        name, requires_logging_directory, tracker = "test", False, None

        def log(self, values, step=None, **_):
            received.append(values)

    def begin(accelerator, prepared):
        accelerator.init_trackers("test")
        metrics = trainers.accelerate_metrics(accelerator, prepared)
        return lambda step, loss: step % EVERY or accelerator.log({"loss": loss} | metrics(), step)

    scaler, model = made()
    programs.accelerate(model, scaler, begin, STEPS, log_with=Tracker())
    assert_logged(received, scaler, model)


def test_a_skip_after_a_rollback_is_told():
    scaler, model = made()
    optimizer, metrics = torch.optim.SGD(model.parameters(), 0.1), trainers.Metrics(scaler, model)

    def step(value):
        for parameter in model.parameters():
            parameter.grad = torch.full_like(parameter, value)
        scaler.scale(torch.ones(()))
        scaler.step(optimizer)
        scaler.update()

    step(1.0)
    saved = scaler.state_dict()
    for value, skip in (math.inf, 1), (math.inf, 1), (1.0, 0):
        step(value)
        assert metrics()["gradscaler/skip"] == skip
    scaler.load_state_dict(saved)
    for value, skip in (1.0, 0), (math.inf, 1), (1.0, 0):
        step(value)
        assert metrics()["gradscaler/skip"] == skip


def test_ignite():
    pytest.importorskip("ignite")
    from ignite.engine import Events
    from ignite.handlers.base_logger import BaseLogger, BaseOutputHandler

    received = []

    class OutputHandler(BaseOutputHandler):
        def __call__(self, engine, logger, event_name):
            values = self._setup_output_metrics_state_attrs(engine, log_text=True, key_tuple=False)
            received.append({name.removeprefix("training/"): value for name, value in values.items()})

    class Logger(BaseLogger):
        def _create_output_handler(self, *args, **kwargs):
            return OutputHandler(*args, **kwargs)

        def _create_opt_params_handler(self, *args, **kwargs):
            raise NotImplementedError

    scaler, model = made()
    metrics = trainers.Metrics(scaler, torch.nn.DataParallel(model), text=True)

    def begin(trainer):
        every = Events.ITERATION_COMPLETED(every=EVERY)
        Logger().attach_output_handler(trainer, every, tag="training", output_transform=metrics)

    programs.ignite(model, scaler, begin, STEPS)
    assert_logged(received, scaler, model)


def accelerate_with(model, scaler):
    import accelerate

    accelerator = accelerate.Accelerator(cpu=True)
    accelerator.scaler = scaler
    trainers.accelerate_metrics(accelerator, model)


def lightning_with(model, scaler):
    programs.lightning_trainer(model, scaler, callbacks=[trainers.lightning_callback()])


def transformers_with(model, scaler):
    programs.transformers_trainer(model, scaler, trainers.add_to_transformers)


def lightning_skips_with(model, scaler):
    programs.lightning_trainer(model, scaler, callbacks=[trainers.lightning_skips()])


def transformers_skips_with(model, scaler):
    programs.transformers_trainer(model, scaler, trainers.transformers_skips)


def accelerate_skips_with(model, scaler):
    import accelerate

    accelerator = accelerate.Accelerator(cpu=True)
    accelerator.scaler = scaler
    trainers.accelerate_skips(accelerator)


LINES = {
    "lightning.pytorch": (lightning_skips_with, r"Trainer\(plugins=\[MixedPrecision\(.*scaler="),
    "transformers.trainer": (transformers_skips_with, r"trainer\.accelerator\.scaler = .*before trainer\.train"),
    "accelerate.optimizer": (accelerate_skips_with, r"accelerator\.scaler = .*before accelerator\.prepare"),
    "ignite.engine": (lambda _, scaler: trainers.ignite_skips(None, scaler), r"scaler = gradscaler\.torch\.GradScaler"),
    "lightning": (lightning_with, r"Trainer\(plugins=\[MixedPrecision\(.*scaler="),
    "transformers": (transformers_with, r"trainer\.accelerator\.scaler = .*before trainer\.train"),
    "accelerate": (accelerate_with, r"accelerator\.scaler = .*before accelerator\.prepare"),
    "ignite": (lambda model, scaler: trainers.Metrics(scaler, model), r"scaler = gradscaler\.torch\.GradScaler"),
}


@pytest.mark.parametrize("trainer", LINES)
@pytest.mark.parametrize("scaler, kind", [(None, "None"), (torch.amp.GradScaler("cpu"), r"a torch\.amp\.")])
def test_the_error_of_another_scaler_has_the_line_to_add(trainer, scaler, kind):
    pytest.importorskip(trainer)
    run, line = LINES[trainer]
    programs.quiet()
    with pytest.raises(TypeError, match=rf"the scaler is {kind}.*Add the line: .*{line}"):
        run(programs.Gpt(), scaler)


def test_a_disabled_scaler_has_no_metrics():
    assert trainers.Metrics(GradScaler("cpu", enabled=False), programs.Gpt())() == {}


def test_importing_it_imports_no_trainer():
    code = f"import sys, gradscaler.torch; gradscaler.torch.trainers; print({set(LINES)} & set(sys.modules))"
    assert run_python("-c", code).stdout == "set()\n"


PROGRAMS = {
    "accelerate": lambda model, scaler: programs.accelerate(model, scaler, steps=STEPS),
    "transformers": lambda model, scaler: programs.transformers_trainer(model, scaler, steps=STEPS),
    "lightning": lambda model, scaler: programs.lightning_trainer(model, scaler, STEPS),
}


@pytest.mark.parametrize("module", ["blocks.0", "blocks.1", "ln"])
@pytest.mark.parametrize("program", PROGRAMS)
def test_the_cause_of_an_overflow_is_the_module_where_it_happened(program, module):
    pytest.importorskip(program)
    scaler, model = made()
    model.bad = ()
    scaler.name_parameters(model)
    model.get_submodule(module).register_forward_hook(
        lambda _, inputs, output: Overflow.apply(output) if len(model.losses) == STEPS - 1 else output
    )
    PROGRAMS[program](model, scaler)
    assert scaler.step_was_skipped and scaler.report.cause.startswith(f"{module}.")
