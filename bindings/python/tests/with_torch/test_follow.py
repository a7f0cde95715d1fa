# SPDX-License-Identifier: MIT
"""After a run with skipped steps, followers of a scaler are as after a run without these batches."""

import contextlib
import copy
import pickle
import warnings

import pytest
import torch
from conftest import begun, sgd
from torch.optim import lr_scheduler, swa_utils

from gradscaler import BadLoss, Policy
from gradscaler.torch import GradScaler, StallError

BAD = (0, 3, 4, 9)
SCHEDULES = {
    "cosine": lambda o: lr_scheduler.CosineAnnealingLR(o, 20),
    "warm-up": lambda o: lr_scheduler.SequentialLR(
        o, [lr_scheduler.LinearLR(o, 0.1, total_iters=3), lr_scheduler.ExponentialLR(o, 0.9)], [3]
    ),
    "plateau": lambda o: lr_scheduler.ReduceLROnPlateau(o, patience=1),
}


class Loop:
    def __init__(self, schedule, fused, average="update_parameters"):
        self.weight = torch.nn.Parameter(torch.ones(3))
        self.model = torch.nn.ParameterList([self.weight])
        self.optimizer = torch.optim.AdamW([self.weight], lr=0.1, fused=fused)
        self.scaler = GradScaler("cpu", policy="static", init_scale=4.0)
        self.schedule = self.scaler.follow(SCHEDULES[schedule](self.optimizer))
        self.average = self.scaler.follow(swa_utils.AveragedModel(self.model), average)
        self.log = []
        self.logged = self.scaler.follow(self.log.append)

    def run(self, steps, bad=BAD, micro=1):
        begun(self.scaler)  # a copy makes its scale at the next loss
        for i in steps:
            if bad is None and i in BAD:
                continue
            for _ in range(micro):  # gradients are accumulated, and all of the loop runs once for each step
                grad = torch.full((3,), 4.0 * (1 + i % 3))
                self.weight.grad = grad if self.weight.grad is None else self.weight.grad + grad
            if bad and i in bad:
                self.weight.grad[1] = torch.inf
            self.scaler.step(self.optimizer)
            self.scaler.update()
            self.weight.grad = None
            self.schedule.step(*[1.0] * isinstance(self.schedule.target, lr_scheduler.ReduceLROnPlateau))
            self.average.update_parameters(self.model)
            self.logged(i)
        return self

    def result(self):
        parts = self.schedule.state_dict(), self.average.state_dict(), self.optimizer.state_dict(), self.weight.detach()
        return str(parts), self.log, self.optimizer.param_groups[0]["lr"]


@pytest.mark.parametrize("micro", [1, 2])
@pytest.mark.parametrize("fused", [False, True])
@pytest.mark.parametrize("schedule", SCHEDULES)
def test_schedule_average_and_log_are_as_without_the_skipped_batches(schedule, fused, micro):
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # such as torch's on the order of the first calls
        ours = Loop(schedule, fused).run(range(14), micro=micro)
    assert ours.result() == Loop(schedule, fused).run(range(14), bad=None, micro=micro).result()
    assert [each.held for each in (ours.schedule, ours.average, ours.logged)] == [len(BAD)] * 3
    assert repr(ours.schedule).endswith(", 4 calls held back>")


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda loop: pickle.loads(pickle.dumps(loop))])
def test_a_copy_goes_on(copied):
    whole = Loop("cosine", False)
    del whole.logged  # a bound method of a list, of which a pickle makes another list
    whole.logged = whole.log.append
    part = copied(whole.run(range(6)))
    assert part.run(range(6, 14)).result()[::2] == whole.run(range(6, 14)).result()[::2]


def test_a_call_after_an_epoch_goes_on_if_a_step_of_it_was_taken():
    loop = Loop("cosine", False)
    epochs = loop.scaler.follow(lr_scheduler.StepLR(loop.optimizer, 1))
    for steps, held in ((0,), 1), ((1, 2, 3), 1), ((4,), 2), ((5, 6), 2):
        loop.run(steps)
        epochs.step()
        assert epochs.held == held


def test_each_optimizer_has_its_own_followers_and_others_follow_any():
    weights = [torch.nn.Parameter(torch.ones(1)) for _ in "ab"]
    optimizers = [torch.optim.SGD([weight], lr=1.0) for weight in weights]
    scaler = begun(GradScaler("cpu", 4.0))
    schedules = [scaler.follow(lr_scheduler.StepLR(each, 1)) for each in optimizers]
    called, other = [], []
    either, second = scaler.follow(called.append), scaler.follow(other.append, optimizer=optimizers[1])
    for grads in (torch.inf, 1.0), (1.0, 1.0), (torch.inf, torch.inf):
        for weight, grad in zip(weights, grads, strict=True):
            weight.grad = torch.tensor([grad])
        for optimizer in optimizers:
            scaler.step(optimizer)
        scaler.update()
        for schedule in schedules:
            schedule.step()
        either(grads), second(grads)
    assert [each.held for each in (*schedules, either, second)] == [2, 1, 1, 1]
    assert (len(called), len(other)) == (2, 2)


@pytest.mark.parametrize("fused", [False, True])
def test_what_a_step_makes_is_copied_unless_it_was_skipped(fused):
    weights = [torch.nn.Parameter(torch.ones(2)) for _ in "ab"]
    optimizers = [torch.optim.SGD([weight], lr=1.0, fused=fused) for weight in weights]
    scaler, any_bits = begun(GradScaler("cpu", 4.0)), torch.tensor([0x7FA01234, 0x40000000], dtype=torch.int32)
    new, kept = [any_bits.view(torch.float32), torch.ones(2, dtype=torch.int64)], torch.zeros(2)
    for grads, taken, second_taken in ((torch.inf, 1.0), False, True), ((1.0, 1.0), True, True):
        old, own = [torch.zeros(2), torch.zeros(2, dtype=torch.int64)], [kept.clone()]
        for weight, grad, optimizer in zip(weights, grads, optimizers, strict=True):
            weight.grad = torch.full((2,), grad)
            scaler.step(optimizer)
        scaler.copy_unless_skipped(new, old)
        scaler.update()
        scaler.copy_unless_skipped(weights[1:], own, optimizers[1])
        assert torch.equal(old[0].view(torch.int32), any_bits * taken) and torch.equal(old[1], new[1] * taken)
        assert torch.equal(own[0], weights[1] * second_taken)
    with pytest.raises(ValueError, match="out has 1 tensors, and tensors has 2"):
        scaler.copy_unless_skipped(new, old[:1])


def test_a_disabled_scaler_holds_nothing_and_a_wrong_name_is_refused():
    called = []
    follower = GradScaler("cpu", enabled=False).follow(called.append)
    follower(1), follower(2)
    assert (called, follower.held, follower.target) == ([1, 2], 0, called.append)
    with pytest.raises(TypeError, match="of type Linear, which has no method 'step': pass its name"):
        GradScaler("cpu").follow(torch.nn.Linear(1, 1))


def test_torchs_class_loads_the_state_of_a_scaler_with_followers():
    loop = Loop("cosine", False).run(range(3))
    torch.amp.GradScaler("cpu").load_state_dict(loop.scaler.state_dict())
    assert not {name for name in loop.schedule.state_dict() if "gradscaler" in name or "scaler" in name}


class ToldError(Exception):
    pass


@pytest.mark.parametrize("backend", [None, "torch"])
@pytest.mark.parametrize("fused", [False, True])
def test_on_skip_gets_the_cause_and_its_error_leaves_a_whole_scaler(fused, backend):
    told = []

    def on_skip(reason):
        told.append((reason.cause.name, reason.message))
        raise ToldError

    policy = Policy("guard", guard_norm=4.0, guard_warmup=0, bad_loss_rule=BadLoss.HOLD)
    one, other = (begun(GradScaler("cpu", policy=policy, on_skip=each, backend=backend)) for each in (on_skip, None))
    for value, cause in (1.0, None), (torch.nan, "OVERFLOW"), (5.0, "OUTLIER"), ("loss", "BAD_LOSS"), (2.0, None):
        for each in one, other:
            optimizer = sgd(w=[1.0 if value == "loss" else value], fused=fused)
            if value == "loss":
                each.scale(torch.tensor(torch.inf))
            each.step(optimizer)
            with pytest.raises(ToldError) if each is one and cause else contextlib.nullcontext():
                each.update()
        assert told[-1:] == ([(cause, one.reason)] if cause else told[-1:])
        assert bytes(one._state()) == bytes(other._state()) and not one._per_optimizer_states
        assert one.step_was_skipped is other.step_was_skipped is (cause is not None)
    assert len(told) == 3 and "the norm, 5, is above 4" in told[1][1]


def test_a_stall_is_raised_also_if_on_skip_fails_and_a_long_reason_is_cut():
    def on_skip(reason):
        raise ToldError

    one = begun(GradScaler("cpu", policy=Policy("torch", max_failed_backoffs=1, min_scale=65536.0), on_skip=on_skip))
    one.step(sgd(w=[torch.inf]))
    with pytest.raises(StallError) as stopped:
        one.update()
    assert isinstance(stopped.value.__context__, ToldError)
    told, name = [], "ä" * 400
    one = begun(GradScaler("cpu", policy=Policy("torch", guard_norm=9.0), init_scale=1.0, on_skip=told.append))
    optimizer = sgd(**{name: [2.0], f"{name}2": [3.0]})
    for _ in range(2):
        one.step(optimizer)
        one.update()
        optimizer.param_groups[0]["params"][0].grad.fill_(30.0)
    sentence = told[0].message
    assert len(told) == 1 and len(sentence.encode()) in (510, 511) and sentence.endswith("ä...")
    assert one.reason.startswith(sentence.removesuffix("...")) and sentence.startswith(
        "skipped: the norm, 30.1496, is above"
    )
    with pytest.raises(TypeError, match="on_skip=3: expected a function that takes a gradscaler.Reason"):
        GradScaler("cpu", on_skip=3)
    assert pickle.loads(pickle.dumps(GradScaler("cpu", on_skip=print)))._options.on_skip is print
