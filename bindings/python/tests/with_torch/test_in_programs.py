# SPDX-License-Identifier: MIT
"""Programs use torch's class from outside: its name, its tensors, its private methods, its modes."""

import warnings
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from conftest import begun, make_step, sgd
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode

import gradscaler.torch._scaler as module
from gradscaler import Policy
from gradscaler.torch import GradScaler, _check, _torch

THEIRS = torch.amp.GradScaler
KINDS = pytest.mark.parametrize("kind", [THEIRS, GradScaler])
FUSED = pytest.mark.parametrize("fused", [False, True])
INF, NAN = float("inf"), float("nan")


def world(kind, fused=False, **options):
    p = torch.nn.Parameter(torch.zeros(3))
    return p, torch.optim.SGD([p], lr=1.0, fused=fused), kind("cpu", init_scale=1024.0, **options)


def step(p, optimizer, scaler, loss=3.0):
    optimizer.zero_grad()
    scaler.scale((p * loss).sum()).backward()
    scaler.unscale_(optimizer)
    grad = p.grad.tolist()
    make_step(scaler, optimizer)
    return grad, p.tolist(), scaler.get_scale(), scaler._get_growth_tracker()


STEPPED = [3.0] * 3, [-3.0] * 3, 1024.0, 1


@pytest.mark.parametrize("options", [{}, {"policy": "guard"}, {"allow_fp16": True}])
def test_under_the_name_of_torchs_class_it_is_the_same(monkeypatch, options):
    for owner in torch, torch.amp, torch.amp.grad_scaler, torch.cuda.amp:
        monkeypatch.setattr(owner, "GradScaler", GradScaler)
    p, optimizer, scaler = world(torch.amp.GradScaler, **options)
    assert step(p, optimizer, scaler)[:2] == STEPPED[:2] and scaler.report.elements == 3


def test_it_is_of_both_of_torchs_classes_and_says_nothing_of_the_older():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        one = GradScaler("cpu")
    assert isinstance(one, THEIRS) and isinstance(one, torch.cuda.amp.GradScaler)


@pytest.mark.parametrize("value", [1.0, INF])
def test_found_inf_can_be_read_for_any_device(value):
    p, optimizer, scaler = world(GradScaler)
    elsewhere = torch.device("cpu", 0)  # is not torch.device("cpu"), under which found_inf is kept
    scaler.scale((p * value).sum()).backward()
    scaler.unscale_(optimizer)
    found = scaler._found_inf_per_device(optimizer)
    assert found[elsewhere].item() == (value == INF)
    assert list(found) == [torch.device("cpu")] and elsewhere not in found
    with pytest.raises(KeyError):
        scaler._found_inf_per_device(torch.optim.SGD([p]))[elsewhere]


@KINDS
def test_a_method_of_torchs_class_or_of_ours_that_a_program_replaced_is_called(monkeypatch, kind):
    called, theirs = [], kind._unscale_grads_

    def own(self, optimizer, inv_scale, found_inf, allow_fp16):
        called.append(allow_fp16)
        return theirs(self, optimizer, inv_scale, found_inf, True)

    monkeypatch.setattr(kind, "_unscale_grads_", own)
    assert step(*world(GradScaler)) == STEPPED and called == [False]


def test_a_part_of_torch_that_moved_is_named():
    told = r"has no torch\.amp\.GradScaler\._moved, which gradscaler\.torch needs: .*2\.6"
    with pytest.raises(ImportError, match=told):
        _torch._require((*_torch._PARTS, "amp.GradScaler._moved"))


@KINDS
def test_two_scalers_that_share_the_tensors_have_one_scale(kind):
    (p, optimizer, one), other = world(kind), world(kind)
    step(p, optimizer, one)
    other[2]._scale, other[2]._growth_tracker = one._scale, one._growth_tracker
    assert step(p, optimizer, one, INF)[2] == 512 == other[2].get_scale()
    assert step(*other) == (*STEPPED[:2], 512.0, 1) and one._get_growth_tracker() == 1


@pytest.mark.parametrize("kind, options", [(THEIRS, {}), (GradScaler, {}), (GradScaler, {"policy": "guard"})])
@FUSED
def test_a_step_in_inference_mode(kind, options, fused):
    p, optimizer, scaler = world(kind, fused, **options)
    scaler.scale((p * 3.0).sum()).backward()
    with torch.inference_mode():
        if not fused:
            scaler.unscale_(optimizer)
        make_step(scaler, optimizer)
    assert p.tolist() == [-3.0] * 3 and step(p, optimizer, scaler)[1] == [-6.0] * 3


@KINDS
@pytest.mark.parametrize("value, inverse, after, found", [(4.0, 0.25, 1.0, 0), (NAN, 0.25, NAN, 1), (2.0, 1.0, 2.0, 0)])
def test_a_direct_call_divides_by_what_it_is_given(kind, value, inverse, after, found):
    p, optimizer, scaler = world(kind)
    p.grad, found_inf = torch.full((3,), value), torch.zeros(1)
    verdicts = scaler._unscale_grads_(optimizer, torch.full((1,), inverse), found_inf, False)
    assert list(verdicts) == [found_inf.device] and verdicts[found_inf.device].tolist() == [found]
    assert str(p.grad.tolist()) == str([after] * 3)
    p.grad = None
    assert scaler._unscale_grads_(optimizer, torch.ones(1), found_inf, False) == {}


@KINDS
def test_a_disabled_scaler_looks_at_nothing_and_losses_without_values_are_scaled(kind):
    assert kind("cpu", enabled=False).unscale_(None) is None
    assert kind("cpu").scale(torch.ones(2, device="meta")).is_meta
    with FakeTensorMode():
        assert kind("cpu").scale(torch.ones(2)).shape == (2,)


def test_the_warning_of_a_missing_cuda_names_the_line_of_the_caller(monkeypatch):
    monkeypatch.setattr(module, "lacks_cuda", lambda: True)
    with pytest.warns(UserWarning, match="CUDA is not available") as seen:
        assert not GradScaler("cuda").is_enabled() and not GradScaler(1024.0).is_enabled()
    assert {warning.filename for warning in seen} == {__file__}


class OwnStep(GradScaler):
    """As in trainers with optimizers that take closures: the program's own class makes the step."""

    def step(self, optimizer):
        self.unscale_(optimizer)
        found = self._per_optimizer_states[id(optimizer)]["found_inf_per_device"]
        if not sum(tensor.item() for tensor in found.values()):
            optimizer.step()


def test_a_class_with_a_step_of_its_own_knows_that_it_was_skipped():
    scaler = begun(OwnStep("cpu"))
    for value, skipped in (INF, True), (1.0, False):
        make_step(scaler, sgd([value]))
        assert scaler.step_was_skipped is skipped


@FUSED
def test_a_guard_that_sees_only_clipped_gradients_says_so(fused):
    p, optimizer, _ = world(GradScaler, fused)
    scaler = GradScaler("cpu", policy=Policy("guard"))
    with pytest.warns(UserWarning, match=r"was 0\.5 in each of 10 steps.*unscale_\(optimizer, max_norm") as seen:
        for i in range(12):
            optimizer.zero_grad()
            scaler.scale((p * (i + 1.0)).sum()).backward()
            torch.nn.utils.clip_grad_norm_([p], 0.5)
            scaler.step(optimizer)
            scaler.update()
    assert len(seen) == 1 and seen[0].filename == __file__


@pytest.mark.parametrize(
    "place",
    ["Members", "weak", "_memory.HostState.norm", "_memory.HostState.clip", "Gradients.put_back", "Check.read"],
)
def test_after_an_error_gradients_that_were_divided_are_neither_divided_again_nor_stepped_with(monkeypatch, place):
    p = torch.nn.Parameter(torch.zeros(4, 4).t().contiguous()[::2])
    optimizer, scaler = torch.optim.SGD([p], lr=1.0), begun(GradScaler("cpu", 1024.0, want=2))
    p.grad = torch.full((4, 4), 4096.0)[::2]

    def fails(*_):
        raise MemoryError("injected")

    holder, _, name = place.rpartition(".")
    with monkeypatch.context() as patch:
        patch.setattr(eval(holder, vars(_check)) if holder else _check, name, fails)
        if place == "Members":
            p.grad[0] = INF
        with pytest.raises(MemoryError, match="injected"):
            scaler.unscale_(optimizer, max_norm=1.0)
    before = p.grad.clone()
    with pytest.raises(RuntimeError, match="already been called"):
        scaler.unscale_(optimizer)
    scaler.step(optimizer)
    assert torch.equal(p.grad, before) and not p.any() and scaler.step_was_skipped
    scaler.update()
    assert step(p, optimizer, scaler)[0] == [[3.0] * 4] * 2


# ---- uses that give the same with both classes ----

# A use takes a kind of scaler and returns values. It says itself what must be true of them, so that torch's class must
# also pass.


def network():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 2))


def loss_of(model):
    with torch.autocast("cpu", dtype=torch.float16):
        return model(torch.linspace(-1, 1, 24).reshape(6, 4)).float().square().mean()


def a_parameter_of_two_optimizers(kind):
    """Each divides the gradient, which torch does not prevent."""
    parameter, scaler = nn.Parameter(torch.ones(2)), kind("cpu", 2.0)
    first, second = (torch.optim.SGD([parameter], lr=1.0) for _ in range(2))
    scaler.scale(parameter.sum()).backward()
    scaler.unscale_(first)
    scaler.unscale_(second)
    assert parameter.grad.tolist() == [0.5, 0.5]
    make_step(scaler, first)
    return [parameter.detach(), scaler.get_scale()]


def lbfgs(kind):
    """Which calls its closure at once, and so works only by position, on gradients that are divided already."""
    model = network()
    optimizer, scaler = torch.optim.LBFGS(model.parameters(), lr=0.1, max_iter=3), kind("cpu")
    losses = []
    for _ in range(3):
        optimizer.zero_grad()
        scaler.scale(loss_of(model)).backward()
        scaler.unscale_(optimizer)
        losses.append(scaler.step(optimizer, lambda: loss_of(model)).item())
        scaler.update()
    return [*losses, *map(torch.Tensor.detach, model.parameters())]


def functional_gradients(kind):
    """torch.func: scale() works on what grad and vmap pass around."""
    scaler, x = kind("cpu", 8.0), torch.linspace(-1, 1, 4)
    one = torch.func.grad(lambda x: scaler.scale(x.square().sum()))(x)
    assert torch.equal(one, 16.0 * x)
    each = torch.func.vmap(torch.func.grad(lambda x: scaler.scale(x.square())))(x)
    return [one, each, torch.func.hessian(lambda x: scaler.scale((x**3).sum()))(x)]


def a_backward_pass_after_the_update(kind):
    """The graph holds the scale, which has changed: autograd must notice."""
    parameter, scaler = nn.Parameter(torch.ones(1)), kind("cpu", 8.0, growth_interval=1)
    late = scaler.scale(parameter.sum())
    scaler.scale(parameter.sum()).backward()
    make_step(scaler, torch.optim.SGD([parameter], lr=0.0))
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        late.backward()
    return [scaler.get_scale()]


def scalers_of_several_threads(kind):
    def work(i):
        torch.set_num_threads(1)
        parameter, scaler = nn.Parameter(torch.full((100,), float(i))), kind("cpu", 2.0**i)
        optimizer = torch.optim.SGD([parameter], lr=0.1)
        for _ in range(20):
            optimizer.zero_grad()
            scaler.scale(parameter.square().sum()).backward()
            make_step(scaler, optimizer)
        return parameter.detach()

    with ThreadPoolExecutor(4) as pool:
        return list(pool.map(work, range(4)))


def many_optimizers_one_after_another(kind):
    """Their ids are used again: what is known of one must not be taken for another's."""
    scaler, scales = kind("cpu", 1.0, growth_interval=5), []
    for _ in range(20):
        model = network()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        scaler.scale(loss_of(model)).backward()
        make_step(scaler, optimizer)
        scales.append(scaler.get_scale())
        del optimizer, model
    assert scales[-1] == 16.0
    return scales


USES = [a_parameter_of_two_optimizers, lbfgs, functional_gradients, a_backward_pass_after_the_update]
USES += [scalers_of_several_threads, many_optimizers_one_after_another]


@pytest.mark.parametrize("use", USES)
def test_the_same_with_torchs_class(use):
    theirs, ours = use(THEIRS), use(GradScaler)
    assert len(theirs) == len(ours) > 0
    for a, b in zip(theirs, ours, strict=True):
        assert type(a) is type(b)
        assert torch.equal(a, b) if isinstance(a, torch.Tensor) else a == b
