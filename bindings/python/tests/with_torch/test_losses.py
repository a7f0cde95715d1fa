# SPDX-License-Identifier: MIT
"""A loss that is Inf or NaN before scale(): with a policy that holds, the step is skipped and the scale is kept."""

import copy
import math
import pickle
import random

import pytest
import torch
from conftest import begun, gradients, make_step, parameters, scaler, sgd
from torch.utils.checkpoint import checkpoint

import gradscaler
from gradscaler import BadLoss, Event, Loss, NoteKind, Policy
from gradscaler.torch import GradScaler, StallError, TensorScaler, _ranks

INF, NAN = math.inf, math.nan
HELD = Event.BAD_LOSS | Event.SKIPPED


def holding(**options):
    return scaler(hold_bad_loss=True, **options)


def made(loss=None, *later, one=None, gradient=1.0, fused=None):
    """Returns a scaler after a step with these losses and a gradient, and its optimizer."""
    one, optimizer = one or holding(), sgd(w=[gradient], fused=fused)
    for value in () if loss is None else (loss, *later):
        one.scale(value if isinstance(value, list | tuple | torch.Tensor) else torch.tensor(value))
    make_step(one, optimizer)
    return one, optimizer


def events(one):
    return Event(one._state().events)


@pytest.mark.parametrize("fused", [None, True])
@pytest.mark.parametrize("gradient", [4.0, NAN])
@pytest.mark.parametrize("loss", [NAN, INF, -INF])
def test_a_bad_loss_skips_the_step_and_keeps_the_scale_also_with_finite_gradients(loss, gradient, fused):
    one, optimizer = made(loss, gradient=gradient, fused=fused)
    assert (events(one), one.get_scale(), parameters(optimizer)[0].item()) == (HELD, 4.0, 0.0)
    assert one.step_was_skipped and one.loss_is_finite is False
    assert (one.report.loss, one.report.overflow) == (Loss.NOT_FINITE, math.isnan(gradient))
    assert one.reason == "skipped: the loss was not finite before it was scaled"
    state, metrics = one._state(), one.metrics()
    assert (state.total_bad_losses, state.total_overflows, state.good_steps) == (1, 0, 0)
    assert (metrics["bad_loss"], metrics["overflow"], metrics["skip"]) == (True, False, True)


def test_a_finite_loss_changes_nothing_and_an_unknown_one_is_judged_by_the_gradients():
    one, optimizer = made(3.0, gradient=4.0)
    assert (one.report.loss, one.loss_is_finite, parameters(optimizer)[0].item()) == (Loss.FINITE, True, -0.5)
    made(3.0, one=one, gradient=INF)
    assert (one.get_scale(), one.metrics()["overflow"]) == (2.0, True)
    made(one=one, gradient=INF)  # the loss of an earlier step does not count
    assert (one.report.loss, one.get_scale()) == (Loss.UNKNOWN, 1.0)


@pytest.mark.parametrize(("options", "holds", "scale"), [
    ({}, False, 2.0), ({"hold_bad_loss": True}, True, 4.0), ({"policy": "recommended"}, True, 4.0),
    ({"policy": "recommended", "hold_bad_loss": False}, False, 2.0), ({"policy": Policy("apex")}, False, 2.0),
    ({"policy": Policy("apex"), "hold_bad_loss": True}, True, 4.0), ({"policy": "guard"}, True, 4.0),
    ({"policy": "guard", "hold_bad_loss": False}, False, 4.0),
])  # fmt: skip
def test_the_policy_holds_unless_the_option_says_otherwise(options, holds, scale):
    one, _ = made(NAN, one=begun(GradScaler("cpu", init_scale=4.0, **options)), gradient=NAN)
    assert (one.get_scale(), bool(events(one) & Event.BAD_LOSS)) == (scale, holds)
    assert one.loss_is_finite is (False if holds else None)
    assert one._policy.bad_loss_rule == (BadLoss.HOLD if holds else BadLoss.OVERFLOW)
    assert not holds or one._policy.max_failed_backoffs == 10


@pytest.mark.parametrize("given", [
    [torch.tensor(1.0), torch.tensor(NAN)], (torch.tensor(1.0), [torch.tensor(INF)]),
    torch.tensor([1.0, NAN]), torch.tensor(INF).half(), torch.tensor(NAN).double(), torch.full((4, 4000), NAN),
    torch.nn.Parameter(torch.tensor(NAN)), torch.tensor([1.0, 1.0, NAN])[::2],
])  # fmt: skip
def test_losses_have_any_form_shape_and_dtype(given):
    assert events(made(given)[0]) == HELD


@pytest.mark.parametrize(
    "given", [[], (), torch.ones(0), torch.ones(2, dtype=torch.complex64), torch.ones((), dtype=int)]
)
def test_of_other_losses_nothing_is_known(given):
    one, _ = made(given, one=made(1.0)[0])
    assert one.report.loss == Loss.UNKNOWN and one.loss_is_finite is None
    disabled = GradScaler("cpu", policy="recommended", enabled=False)
    disabled.scale(torch.tensor(NAN))
    assert disabled.loss_is_finite is None


def test_a_loss_of_functorch_has_no_value_and_is_not_kept():
    one, weights = holding(), torch.ones(3)
    assert torch.func.grad(lambda w: one.scale(w.sum() * INF))(weights).isinf().all()
    assert events(made(1.0, one=one)[0]) == 0


@pytest.mark.parametrize("count", [1, 4, 16, 200])
def test_one_bad_loss_of_many_micro_batches_holds(count):
    one = holding()
    for bad in {0, count // 2, count - 1}:
        made(*(NAN if i == bad else 1.0 for i in range(count)), one=one)
        assert events(one) == HELD
    made(*([1e300 * torch.ones((), dtype=torch.float64), 1.0] * count), one=one)
    assert events(one) == 0 and one._state().total_bad_losses == len({0, count // 2, count - 1})


def test_a_loss_counts_as_it_was_when_it_was_scaled():
    one, loss = holding(), torch.tensor(NAN)
    one.scale(loss)
    loss.zero_()
    assert events(made(one=one)[0]) == HELD
    loss = torch.tensor(1.0)
    one.scale(loss)
    loss.fill_(INF)
    assert events(made(one=one)[0]) == 0


def test_the_second_loss_of_a_gradient_penalty_is_an_overflow_if_the_scale_made_it_infinite():
    model, x = torch.nn.Linear(4, 1), torch.full((3, 4), 100.0)
    optimizer, one = torch.optim.SGD(model.parameters(), lr=0.0), GradScaler("cpu", 2.0**120, hold_bad_loss=True)
    while one._state().total_overflows == 0 or one.step_was_skipped:
        loss = model(x).square().mean()
        scaled = torch.autograd.grad(one.scale(loss), model.parameters(), create_graph=True)
        penalty = sum(gradient.square().sum() for gradient in scaled) / one.get_scale() ** 2
        one.scale(loss + penalty).backward()
        make_step(one, optimizer)
        optimizer.zero_grad()
        assert one.loss_is_finite
    assert one._state().total_bad_losses == 0


def reentrant(model, x):
    return checkpoint(model, x, use_reentrant=True)


def not_reentrant(model, x):
    return checkpoint(model, x, use_reentrant=False)


@pytest.mark.parametrize("options", [{}, {"retain_graph": True}], ids=["plain", "retained"])
@pytest.mark.parametrize("run", [torch.nn.Module.__call__, reentrant, not_reentrant])
def test_a_later_loss_counts_after_every_other_backward_pass(run, options):
    model, one = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Linear(4, 1)), holding()
    for factor in 1.0, INF:
        loss = run(model, torch.ones(2, 4, requires_grad=True)).square().mean() * factor
        one.scale(loss).backward(**options)
    make_step(one, torch.optim.SGD(model.parameters()))
    assert events(one) == HELD


def test_each_optimizer_skips_by_the_losses_that_were_scaled_before_its_step():
    one, first, second = holding(), sgd([4.0]), sgd([4.0])
    one.scale(torch.tensor(1.0))
    one.step(first)
    one.scale(torch.tensor(NAN))
    one.step(second)
    one.update()
    assert (parameters(first)[0].item(), parameters(second)[0].item(), events(one)) == (-0.5, 0.0, HELD)
    assert [one.report_of(each).loss for each in (first, second)] == [Loss.FINITE, Loss.NOT_FINITE]


def test_unscale_returns_the_norm_of_finite_gradients_and_reason_is_known_before_update():
    one, optimizer = holding(), sgd(w=[12.0])
    one.scale(torch.tensor(NAN))
    assert one.unscale_(optimizer, max_norm=1.0).item() == 3.0 and gradients(optimizer)[0].item() < 1.1
    one.step(optimizer)
    reason = one.reason
    one.update()
    assert one.reason == reason == "skipped: the loss was not finite before it was scaled"


@pytest.mark.parametrize("gradient", [4.0, NAN])
def test_found_inf_of_other_code_decides(gradient):
    for verdict in 0.0, 1.0:
        one, optimizer = holding(), sgd(w=[gradient])
        one.scale(torch.tensor(NAN))
        one.unscale_(optimizer)
        one._per_optimizer_states[id(optimizer)]["found_inf_per_device"] = {torch.device("cpu"): torch.tensor(verdict)}
        make_step(one, optimizer)
        assert (events(one), one.get_scale()) == (HELD if verdict else 0, 4.0)


def test_an_unscale_of_the_program_holds_too():
    class Mine(GradScaler):
        def _unscale_grads_(self, optimizer, inv_scale, found_inf, allow_fp16):
            return super()._unscale_grads_(optimizer, inv_scale, found_inf, True)

    assert events(made(NAN, one=begun(Mine("cpu", 4.0, hold_bad_loss=True)), gradient=NAN)[0]) == HELD


@pytest.mark.parametrize("kind", ["sparse", "of a subclass"])
def test_gradients_that_are_no_plain_list_hold_too(kind):
    class Tagged(torch.Tensor):
        pass

    gradient = torch.eye(3).to_sparse() if kind == "sparse" else torch.ones(3).as_subclass(Tagged)
    one, optimizer = holding(), sgd(gradient, torch.ones(2))
    one.scale(torch.tensor(NAN))
    make_step(one, optimizer)
    assert (events(one), one.get_scale(), one.report.overflow) == (HELD, 4.0, False)


@pytest.mark.parametrize("gradient", [4.0, NAN])
def test_ten_bad_losses_in_a_row_stop_with_the_reason(gradient):
    one = scaler(policy="recommended")
    for _ in range(2):  # a good step ends the row
        for _ in range(9):
            made(NAN, one=one, gradient=gradient)
        if one._state().total_bad_losses == 9:
            made(1.0, one=one, gradient=4.0)
    with pytest.raises(StallError) as raised:
        made(NAN, one=one, gradient=gradient)
    assert raised.value.report.loss == Loss.NOT_FINITE and one.get_scale() == 4.0
    assert [finding.kind for finding in raised.value.findings][:1] == [NoteKind.BAD_LOSSES]
    assert one.reason.startswith("stopped: the loss was not finite before it was scaled, 10 in a row")
    assert "after 10 losses in a row that were not finite before scaling" in str(raised.value)
    told = []
    one = holding(on_stall=told.append)
    for _ in range(10):
        made(INF, one=one)
    assert [type(each) for each in told] == [StallError]


def test_a_checkpoint_and_a_copy_keep_the_rule_and_the_row():
    one, _ = made(NAN)
    loaded = scaler()
    loaded.load_state_dict(one.state_dict())
    with pytest.warns(UserWarning, match="the checkpoint replaces what GradScaler was given: bad_loss_rule 0 by 1"):
        scaler(hold_bad_loss=False).load_state_dict(one.state_dict())
    for other in loaded, pickle.loads(pickle.dumps(one)), copy.deepcopy(one):
        made(NAN, one=other)
        assert (events(other), other._state().bad_losses_in_a_row) == (HELD, 2)
    kept = holding()
    kept.load_state_dict(torch.amp.GradScaler("cpu", init_scale=8.0).state_dict())
    assert events(made(NAN, one=kept)[0]) == HELD and kept.get_scale() == 8.0


def test_a_history_and_the_diagnosis_have_bad_losses(tmp_path):
    one = holding()
    with one.history(tmp_path / "run.jsonl"):
        for i in range(100):
            made(NAN if i in (10, 20) else 1.0, one=one, gradient=4.0)
    (found,) = one.diagnose()
    assert (found.kind, found.value) == (NoteKind.BAD_LOSSES, 0.02)
    assert gradscaler.diagnose(tmp_path / "run.jsonl") == [found]


@pytest.mark.wording
def test_a_diagnosis_knows_a_bad_loss_that_the_policy_does_not_judge():
    one = scaler(hold_bad_loss=False)
    for value in [1.0] * 5 + [NAN] * 25:
        made(torch.tensor(value, requires_grad=True), one=one, gradient=value)
    assert (
        one._state().total_bad_losses == one._state().total_overflows == 25 and "the loss was not finite" in one.reason
    )
    for _ in range(5):
        (found,) = one.diagnose()
        assert found.kind == NoteKind.BAD_LOSSES and "learning rate" not in found
        made(torch.tensor(1.0, requires_grad=True), one=one, gradient=1.0)


def test_a_rank_counts_no_bad_loss_that_other_ranks_cannot_know(monkeypatch):
    one = scaler(hold_bad_loss=False)
    monkeypatch.setattr(_ranks, "count", lambda: 2)
    made(torch.tensor(NAN, requires_grad=True), one=one, gradient=NAN)
    assert (one._state().total_overflows, one._state().total_bad_losses) == (1, 0)


def test_a_tensor_scaler_takes_loss_finite_as_data():
    for policy in Policy("torch"), Policy("torch", bad_loss_rule=BadLoss.HOLD, max_failed_backoffs=3):
        one, holds = TensorScaler(policy), policy.bad_loss_rule == BadLoss.HOLD
        for finite, gradient in (True, 1.0), (False, 1.0), (False, NAN), (None, 1.0), (False, 1.0):
            flag = None if finite is None else torch.tensor(finite)
            found, norm = one.unscale_([torch.full((4,), gradient)], loss_finite=flag)
            assert found.item() == (math.isnan(gradient) or (holds and finite is False))
            assert norm.item() == (INF if math.isnan(gradient) else 2.0**-15 if one.loss_scale == 2.0**16 else 2.0**-14)
            one.update()
            assert one.report.loss == (Loss.UNKNOWN, Loss.FINITE, Loss.NOT_FINITE)[0 if flag is None else 2 - finite]
        assert one.loss_scale == (2.0**16 if holds else 2.0**15) and not one.stopped
    with pytest.raises(TypeError, match="loss_finite must be a tensor of torch.bool"):
        one.unscale_([torch.ones(2)], loss_finite=torch.tensor(1.0))


def test_loss_finite_is_data_inside_a_graph():
    one = TensorScaler("recommended")

    @torch.compile(fullgraph=True, backend="aot_eager")
    def step(loss, gradient):
        found, _ = one.unscale_([gradient], loss_finite=torch.isfinite(loss).all())
        one.update()
        return found

    assert [step(torch.tensor(value), torch.ones(3)).item() for value in (1.0, NAN, 2.0)] == [0.0, 1.0, 0.0]
    assert one.loss_scale == 2.0**16


# ---- whole runs ----


def simulated(bad, overflows_above=65536.0, steps=2000, **options):
    """Returns the scale and the skips of a run with bad losses at some steps, and where it stopped; None: nowhere."""
    one, optimizer, skips = GradScaler("cpu", growth_interval=200, **options), sgd([1.0], fused=False), 0
    for step in range(steps):
        is_bad = bad(step)
        one.scale(torch.tensor(NAN if is_bad else 1.0))
        gradients(optimizer)[0].fill_(NAN if is_bad else INF if one.get_scale() > overflows_above else 1.0)
        try:
            make_step(one, optimizer)
        except StallError:
            return math.log2(one.get_scale()), skips + 1, step
        skips += one.step_was_skipped
    return math.log2(one.get_scale()), skips, None


CHANCE = random.Random(2)
NAN_BATCHES = {step for step in range(2000) if CHANCE.random() < 0.05}


@pytest.mark.parametrize(("bad", "lost", "held"), [
    (lambda i: i in NAN_BATCHES, (-86, 102, None), (16, 111, None)),  # 5 % NaN batches
    (lambda i: 800 <= i < 808, (13, 11, None), (16, 17, None)),  # a forward pass that overflows
    (lambda i: 800 <= i < 900, (-79, 103, None), (16, 13, 809)),
    (lambda i: False, (16, 9, None), (16, 9, None)),  # true overflows
])  # fmt: skip
def test_torchs_rule_loses_the_scale_and_a_scaler_that_holds_keeps_it(bad, lost, held):
    assert (simulated(bad), simulated(bad, hold_bad_loss=True)) == (lost, held)


def trained(scaler, share=0.05, steps=500):
    """Trains in float16; returns log2 of the scale, the share of gradients that are 0, and the loss, at the end."""
    torch.manual_seed(1)
    chance = random.Random(4)
    model = torch.nn.Sequential(torch.nn.Linear(8, 32), torch.nn.ReLU(), torch.nn.Linear(32, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=4.0)
    for _ in range(steps):
        x = torch.randn(16, 8)
        y = x[:, :1] * (NAN if chance.random() < share else 1.0)
        optimizer.zero_grad()
        with torch.autocast("cpu", torch.float16):
            loss = torch.nn.functional.mse_loss(model(x).float(), y) * 1e-3  # as of an auxiliary head
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
    found = torch.cat([parameter.grad.flatten() for parameter in model.parameters()])
    return math.log2(scaler.get_scale()), (found == 0).float().mean().item(), loss.item()


def test_with_nan_batches_training_in_float16_keeps_its_gradients():
    theirs, ours = trained(torch.amp.GradScaler("cpu")), trained(GradScaler("cpu"))
    held, clean = trained(GradScaler("cpu", hold_bad_loss=True)), trained(torch.amp.GradScaler("cpu"), share=0.0)
    assert ours == theirs and ours[0] < 0 and ours[1] > 0.9
    assert held[:2] == clean[:2] == (16.0, 0.0) and held[2] < ours[2]
