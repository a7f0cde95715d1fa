# SPDX-License-Identifier: MIT
"""Situations that users of loss scaling report, rebuilt.

Others are in test_follow and test_trainer_skips (a schedule or an average that moves at a skip of a fused optimizer),
test_step_all (Muon beside AdamW), test_late (a dummy step) and test_resume (a resume that changes the scale).
"""

import copy
import math

import programs
import pytest
import torch
from conftest import begun, make_step, parameters, sgd

from gradscaler.torch import GradScaler

BACKENDS = pytest.mark.parametrize("backend", [None, "torch"])
FUSED = pytest.mark.parametrize("fused", [False, True], ids=["plain", "fused"])


class Training:
    def __init__(self, fused, backend):
        torch.manual_seed(0)
        self.model = torch.nn.Linear(4, 1)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=0.01, fused=fused)
        self.scaler = GradScaler("cpu", 2.0**30, growth_interval=3, backend=backend)

    def step(self, i):
        self.optimizer.zero_grad()
        x = torch.randn(8, 4, generator=torch.Generator().manual_seed(i))
        loss = (self.model(x) - 1).square().mean()
        self.scaler.scale(loss).backward()
        for p in self.model.parameters():  # as if backward ran in float16
            p.grad = p.grad.half().float()
        make_step(self.scaler, self.optimizer)
        return loss.item()

    def run(self, steps):
        losses = [self.step(i) for i in steps]
        parts = self.model, self.optimizer, self.scaler
        return losses, str([part.state_dict() for part in parts])


@BACKENDS
@FUSED
def test_a_learning_rate_finder_sweeps_over_steps_that_were_taken_and_leaves_no_trace(fused, backend):
    training, plain = Training(fused, backend), Training(fused, backend)
    for each in training, plain:
        each.run(range(3))
    before = [copy.deepcopy(part.state_dict()) for part in (training.model, training.optimizer, training.scaler)]
    rates = training.scaler.follow(torch.optim.lr_scheduler.ExponentialLR(training.optimizer, 1.5))
    tried = []
    for i in range(100, 140):
        rate = training.optimizer.param_groups[0]["lr"]
        loss = training.step(i)
        rates.step()
        if not training.scaler.step_was_skipped:
            tried.append((rate, loss))
    assert rates.held and len(tried) == 40 - rates.held
    assert [rate for rate, _ in tried] == pytest.approx([0.01 * 1.5**i for i in range(len(tried))])
    for part, state in zip((training.model, training.optimizer, training.scaler), before, strict=True):
        part.load_state_dict(state)
    assert training.run(range(3, 20)) == plain.run(range(3, 20))


def test_lightnings_learning_rate_finder_leaves_no_trace(tmp_path, monkeypatch):
    lightning = pytest.importorskip("lightning")
    from lightning.pytorch.plugins import MixedPrecision

    monkeypatch.chdir(tmp_path)  # where it saves what it restores
    programs.quiet()
    scaler = GradScaler("cpu", 2.0**30, growth_interval=3)

    class Module(lightning.LightningModule):
        lr = 0.01

        def __init__(self):
            super().__init__()
            self.layer = torch.nn.Linear(4, 1)

        def training_step(self, x, _):
            return (self.layer(x) - 1).square().mean()

        def configure_optimizers(self):
            return torch.optim.AdamW(self.parameters(), lr=self.lr)

    trainer = lightning.Trainer(
        accelerator="cpu", max_steps=3, logger=False, enable_checkpointing=False, enable_progress_bar=False,
        plugins=[MixedPrecision("16-mixed", "cpu", scaler=scaler)], enable_model_summary=False, devices=1,
    )  # fmt: skip
    before = scaler.state_dict()
    loader = torch.utils.data.DataLoader([torch.randn(4) for _ in range(40)], batch_size=4)
    lightning.pytorch.tuner.Tuner(trainer).lr_find(Module(), loader, num_training=10, update_attr=False)
    assert scaler.state_dict() == before


class Engine:
    """An engine for RL that owns the optimizer: its step unscales, clips and steps."""

    def __init__(self, scaler, optimizer):
        self.scaler, self.optimizer = scaler, optimizer

    def step(self):
        norm = self.scaler.unscale_(self.optimizer, max_norm=1.0)
        make_step(self.scaler, self.optimizer)
        return norm


@BACKENDS
@FUSED
def test_an_engine_and_a_trainer_cannot_both_unscale(fused, backend):
    for trainer_unscales in True, False:
        scaler, optimizer = begun(GradScaler("cpu", 4.0, backend=backend)), sgd([12.0, 16.0], fused=fused)
        engine = Engine(scaler, optimizer)
        if trainer_unscales:
            scaler.unscale_(optimizer)
            with pytest.raises(RuntimeError, match="No loss was scaled since then, so two places unscale in one step"):
                engine.step()
            assert parameters(optimizer)[0].grad.tolist() == [3.0, 4.0]  # divided once
        else:
            assert (engine.step().item(), scaler.report.norm) == (5.0, 5.0)  # the trainer reads the norm
            assert parameters(optimizer)[0].tolist() == pytest.approx([-0.3, -0.4])


@BACKENDS
@FUSED
def test_a_log_has_the_scale_of_its_step_and_neither_0_nor_the_next(fused, backend):
    scaler, logged, used = GradScaler("cpu", 1024.0, growth_interval=1, backend=backend), [], []
    assert (scaler.get_scale(), scaler.metrics()["loss_scale"], scaler.report) == (1024.0, 1024.0, None)
    for bad in False, True, False, True, True:
        used.append(scaler.scale(torch.ones(())).item())
        scaler.step(sgd([math.inf if bad else 1.0], fused=fused))
        logged.append(scaler.report.scale)
        following = scaler.metrics()["loss_scale"]
        scaler.update()
        assert scaler.report.scale == logged[-1] and scaler.metrics()["loss_scale"] == following == scaler.get_scale()
    assert logged == used == [1024.0, 2048.0, 1024.0, 2048.0, 1024.0]
