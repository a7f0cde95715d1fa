# SPDX-License-Identifier: MIT
"""step_all: several optimizers have one norm and one clip, and either all of them step or none does."""

import math

import pytest
import torch
from conftest import gradients, make_step, parameters, scaler, sgd

from gradscaler import Guard, Policy
from gradscaler.torch import GradScaler

BACKENDS = pytest.mark.parametrize("backend", [None, "torch"])
FUSED = pytest.mark.parametrize("fused", [(False, False), (True, True), (False, True)], ids=str)


def pair(fused, first=(3.0, 4.0), second=(12.0,)):
    """Returns two optimizers with gradients that have the norm 13 after unscaling by 4."""
    return [
        sgd([4.0 * g for g in values], fused=one)
        for values, one in zip((first, second), fused, strict=True)
    ]  # fmt: skip


def weights(optimizers):
    return [p.tolist() for optimizer in optimizers for p in parameters(optimizer)]


@BACKENDS
@FUSED
@pytest.mark.parametrize(("max_norm", "clip"), [(None, 1.0), (1.0, 1 / 13), (100.0, 1.0)])
def test_all_step_with_gradients_that_are_clipped_by_one_norm(fused, backend, max_norm, clip):
    one, optimizers = scaler(backend=backend), pair(fused)
    norm = one.step_all(optimizers, max_norm)
    assert norm is None if max_norm is None else (norm.item(), norm.dtype) == (13.0, torch.float32)
    for moved, gradient in zip(weights(optimizers), ([3.0, 4.0], [12.0]), strict=True):
        assert moved == pytest.approx([-0.5 * clip * g for g in gradient], rel=1e-6)
    assert not one.step_was_skipped and one.report.elements == 3
    one.update()
    assert (one.get_scale(), one._get_growth_tracker()) == (4.0, 1)


@BACKENDS
@FUSED
@pytest.mark.parametrize("max_norm", [None, 1.0])
@pytest.mark.parametrize("bad", [0, 1])
def test_an_overflow_in_one_optimizer_skips_all_and_counts_once(fused, backend, max_norm, bad):
    one, optimizers = scaler(backend=backend), pair(fused)
    gradients(optimizers[bad])[0][0] = math.nan
    norm = one.step_all(optimizers, max_norm)
    assert norm is None if max_norm is None else math.isinf(norm)
    assert one.step_was_skipped and all(one.report_of(each).overflow for each in optimizers)
    assert one.reason.startswith(f'skipped: 1 NaN in "group {bad}, parameter 0')
    one.update()
    assert (one.get_scale(), one.metrics()["total_overflows"]) == (2.0, 1)
    assert not any(map(any, weights(optimizers)))


@BACKENDS
@FUSED
def test_a_guard_judges_the_one_norm(fused, backend):
    """Each norm alone, 5 or 12, would pass."""
    for flags, moved in (0, [0.0] * 3), (Guard.CLIP, [-0.5 * 12.5 / 13 * g for g in (3, 4, 12)]):
        policy = Policy("torch", guard_norm=12.5, guard_flags=flags)
        one, optimizers = scaler(1.0, policy=policy, backend=backend), pair(fused, (0.75, 1.0), (3.0,))
        one.step_all(optimizers)
        assert one.step_was_skipped is (not flags)
        one.update()
        assert sum(weights(optimizers), []) == pytest.approx(moved, rel=1e-5)
        assert one.total_guard_skips == (not flags)


@BACKENDS
def test_a_clip_and_the_clip_of_a_guard_are_not_multiplied(backend):
    policy = Policy("torch", guard_norm=2.0, guard_flags=Guard.CLIP)
    one, optimizers = scaler(1.0, policy=policy, backend=backend), pair((False, True), (0.75, 1.0), (3.0,))
    one.step_all(optimizers, max_norm=1.0)
    assert sum(weights(optimizers), []) == pytest.approx([-0.5 * g / 13 for g in (3, 4, 12)], rel=1e-5)


def test_the_usual_shares_of_a_guard_are_kept_over_steps():
    one, optimizers = scaler(1.0, policy=Policy("guard", guard_ratio=4.0, guard_warmup=2)), pair((False, False))
    for size in 1.0, 1.0, 1.0, 50.0:
        for optimizer in optimizers:
            gradients(optimizer)[0].fill_(1.0)
        gradients(optimizers[1])[0].fill_(size)
        one.step_all(optimizers)
        one.update()
    assert list(one.report.grew.values()) == [(pytest.approx(1 / 3), pytest.approx(2500 / 2502))]


def test_what_it_cannot_do_is_refused_and_changes_nothing():
    one, optimizers = scaler(), pair((False, False))
    one.unscale_(optimizers[1])
    with pytest.raises(RuntimeError, match="unscale_.. has already been called on one of these.*call it alone"):
        one.step_all(optimizers)
    one.update()
    make_step(one, optimizers[1])
    one.step(optimizers[1])
    with pytest.raises(RuntimeError, match="step.. has already been called since the last update"):
        one.step_all(optimizers)
    with pytest.raises(ValueError, match="max_norm=0: it must be finite and above 0"):
        scaler().step_all(optimizers, 0)
    with pytest.raises(AssertionError, match=r"^No inf checks.*None of its 1 parameters has a gradient"):
        scaler().step_all([torch.optim.SGD([torch.nn.Parameter(torch.ones(1))])])
    whole = torch.full((4,), 8.0)
    for backend in None, "torch":
        for max_norm in None, 1.0:
            with pytest.raises(ValueError, match="shares memory with the gradient of group 0"):
                scaler(backend=backend).step_all([sgd(whole), sgd(whole[2:])], max_norm)
            with pytest.raises(ValueError, match="FP16"):
                scaler(backend=backend).step_all([sgd(whole), sgd(torch.ones(3).half())], max_norm)
    assert whole.tolist() == [8.0] * 4


@pytest.mark.parametrize("max_norm", [None, 1.0])
def test_gradients_on_no_list_of_the_library_are_stepped_with_all_others(max_norm):
    rows, columns = torch.full((4, 2), 8.0).t()[:, ::2], torch.ones(3, 2).t()
    sparse = torch.sparse_coo_tensor([[0, 2]], [4.0, 8.0], (3,), check_invariants=True)
    one, optimizers = scaler(), [sgd(rows, sparse), sgd(columns.expand(2, 3)), sgd([1.0])]
    norm = one.step_all(optimizers, max_norm)
    total = math.sqrt(4 * 2**2 + 1 + 2**2 + 6 / 16 + 1 / 16)
    assert norm is None or norm.item() == pytest.approx(total)
    clip = 1.0 if max_norm is None else 1 / total
    expected = [[[-clip] * 2] * 2, [-0.5 * clip, 0.0, -clip], [[-clip / 8] * 3] * 2, [-clip / 8]]
    for moved, wanted in zip(weights(optimizers), expected, strict=True):
        torch.testing.assert_close(torch.tensor(moved), torch.tensor(wanted))


def test_a_disabled_scaler_clips_and_steps_with_all():
    optimizers = pair((False, False))
    norm = GradScaler("cpu", enabled=False).step_all(optimizers, max_norm=1.0)
    assert norm.item() == 52.0
    assert sum(weights(optimizers), []) == pytest.approx([-0.5 * g / 13 for g in (3, 4, 12)], rel=1e-5)


def train_muon_and_adamw(step, init_scale, steps):
    """Returns ten parameters, and how many moved; at a scale above 2^11 float16 cannot hold a gradient of the first."""
    torch.manual_seed(0)
    weights = [torch.nn.Parameter(torch.randn(*size)) for size in [(4, 4)] * 5 + [(4,)] * 5]
    before = [w.detach().clone() for w in weights]
    optimizers = torch.optim.Muon(weights[:5], lr=0.1), torch.optim.AdamW(weights[5:], lr=0.1)
    one = GradScaler("cpu", init_scale)
    for _ in range(steps):
        for optimizer in optimizers:
            optimizer.zero_grad()
        one.scale(sum(w.square().mean() for w in weights)).backward()
        weights[0].grad += torch.tensor(2.0**4 * one.get_scale()).half().float()
        step(one, optimizers)
        one.update()
    return weights, sum(not torch.equal(*pair) for pair in zip(before, weights, strict=True))


def clip_and_step_with_each(one, optimizers):
    for optimizer in optimizers:
        one.unscale_(optimizer)
    torch.nn.utils.clip_grad_norm_([p for optimizer in optimizers for p in parameters(optimizer)], 1.0)
    for optimizer in optimizers:
        one.step(optimizer)


@pytest.mark.skipif(not hasattr(torch.optim, "Muon"), reason="this version of torch has no Muon")
def test_an_overflow_of_muon_is_also_a_skip_of_adamw():
    """A common clip and a step for each make all gradients of AdamW 0 in these steps, and it steps with them."""
    expected, _ = train_muon_and_adamw(lambda *both: GradScaler.step_all(*both, max_norm=1.0), 2.0**11, 3)
    for step, same, at_first in (
        (lambda *both: GradScaler.step_all(*both, max_norm=1.0), 10, 0),
        (clip_and_step_with_each, 5, 5),
    ):
        found, changed = train_muon_and_adamw(step, 2.0**16, 8)  # of which 5 overflow
        assert changed == 10
        assert sum(torch.allclose(*pair) for pair in zip(found, expected, strict=True)) == same
        assert train_muon_and_adamw(step, 2.0**16, 1)[1] == at_first
