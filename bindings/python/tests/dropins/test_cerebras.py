# SPDX-License-Identifier: MIT
"""gradscaler.cerebras against recordings, beside Cerebras' own class, and in a trainer's loop."""

import contextlib
import copy
import importlib
import importlib.metadata
import pickle
import random
import sys
import types
import warnings
from pathlib import Path

import pytest
import torch
from conftest import call, in_a_step, parameter_of, run, set_gradient, sgd, stubs, traces

from gradscaler.cerebras import GradScaler, optimizer_step

INF, NAN = float("inf"), float("nan")


def dynamic(half_dtype=None, **options):
    return GradScaler("dynamic", half_dtype=half_dtype, **options)


@pytest.mark.parametrize("settings, trace", traces("cerebras", "cerebras_cb16"))
def test_a_recording_of_cerebras(settings, trace, request):
    half = "cbfloat16" if "cb16" in request.node.name else "float16"
    limits = {f"{end}_loss_scale": settings[f"{end}_scale"] for end in ("min", "max")}
    limits |= {name: settings[name] for name in ("init_scale", "overflow_tolerance")}
    scaler = dynamic(half, steps_per_increase=settings["growth_interval"], **limits)
    assert trace["overflow"] == trace["skipped"]
    for bad, scale in zip(trace["overflow"], trace["scale"], strict=False):
        assert run(scaler, bad) == [scale]
        assert scaler.get_scale() in (settings["min_scale"], scaler.get_non_clamped_scale())
    assert scaler.get_scale().item() == trace["scale"][-1]


def seen(scaler):
    state = scaler.state_dict()
    keys = "loss_scale", "steps_since_rescale", "overflows_since_rescale", "num_skipped_steps"
    return [*(state[key].item() for key in keys), scaler.get_non_clamped_scale().item()]


@pytest.fixture
def theirs():
    """Cerebras' class, from its package alone, on a backend that scales; what the package wants beside it is absent."""
    try:
        version = importlib.metadata.version("cerebras_pytorch")
    except importlib.metadata.PackageNotFoundError:
        pytest.skip("cerebras_pytorch has no package for this Python")
    assert version == "2.10.0"
    path = Path(importlib.metadata.distribution("cerebras_pytorch").locate_file("cerebras/pytorch"))
    backend = types.SimpleNamespace(
        backend_type=types.SimpleNamespace(is_csx=True),
        optimizer_registry=[],
        name_scope=lambda name: contextlib.nullcontext(),
        setup_grad_scaler=lambda scaler: None,
        mark_output=lambda outputs: None,
    )
    modules = {
        "cerebras": {},
        "cerebras.appliance": {},
        "cerebras.appliance.environment": {"appliance_environ": {}},
        "cerebras.pytorch": {"__path__": [str(path)]},
        "cerebras.pytorch.backend": {"current_backend_impl": lambda: backend},
        "cerebras.pytorch.distributed": {"is_master_ordinal": lambda: True},
        "cerebras.pytorch.amp": {"__path__": [str(path / "amp")], "disable_casts": contextlib.nullcontext},
    }
    with stubs("cerebras", modules):
        amp = sys.modules["cerebras.pytorch.amp"]
        amp.setup_optimizer = importlib.import_module("cerebras.pytorch.amp._process_optimizer")._process_optimizer
        state = importlib.import_module("cerebras.pytorch.amp._amp_state")._amp_state
        state.handle = types.SimpleNamespace(_clear_cache=lambda: None)
        amp.get_half_dtype_str = lambda: state.half_dtype_str
        yield importlib.import_module("cerebras.pytorch.amp.grad_scaler").GradScaler, backend, state


LOSS = "scale", torch.tensor(0.3)


def random_calls(draw, count):
    """As a trainer's loop has them, now and then in a wrong order."""
    every = range(count)
    for _ in range(draw.randint(1, 6)):
        yield from (("zero_grad", which) for which in every)  # theirs takes none that are left over
        yield LOSS
        yield from (("gradient", which, 1.0, draw.choice([None, None, None, INF, NAN, 1e20])) for which in every)
        yield from (("unscale_", which) for which in every)
        if draw.random() < 0.1:
            yield draw.choice([("unscale_", 0), LOSS])
        yield from (("step", which) for which in every)
        if draw.random() < 0.03:
            yield draw.choice(["step", "unscale_"]), 0
        yield ("update",)


def test_random_calls_do_what_they_do_in_cerebras_class(theirs, sequences):
    their_class, backend, amp_state = theirs
    failed = 0
    for seed in range(sequences):
        draw = random.Random(seed)
        amp_state.half_dtype = draw.choice(["float16", "cbfloat16"])
        options = {
            "init_scale": draw.choice([None, 1.0, 1000.0, 2.0**20, 2.0**-14]),
            "steps_per_increase": draw.randint(1, 4),
            "min_loss_scale": draw.choice([None, 2.0**-14, 1.0, 300.0]),
            "max_loss_scale": draw.choice([None, 2.0**15, 3000.0]),
            "overflow_tolerance": draw.choice([0.0, 0.1, 0.25, 0.3, 0.5, 0.9]),
            "max_gradient_norm": draw.choice([None, None, 0.5]),
        }
        clipping = 1e-5 if options["max_gradient_norm"] else 0  # theirs rounds the coefficient to float32 twice
        loss_scale = draw.choice(["dynamic"] * 9 + [64.0])
        count = draw.randint(1, 2)
        our_optimizers, backend.optimizer_registry = ([sgd() for _ in range(count)] for _ in range(2))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # clipping is deprecated there
            pair = [
                (GradScaler(loss_scale, **options), our_optimizers),
                (their_class(loss_scale, **options), backend.optimizer_registry),
            ]
        for action in random_calls(draw, count):
            results = [call(scaler, optimizers, *action) for scaler, optimizers in pair]
            assert results[0] == results[1], (seed, action)
            if isinstance(results[1], type):
                failed += 1
                break
            ours, their = ([parameter_of(each).detach() for each in optimizers] for _, optimizers in pair)
            for a, b in zip(ours, their, strict=True):
                torch.testing.assert_close(a, b, rtol=0, atol=clipping, equal_nan=True)
            if action[0] == "update" and loss_scale == "dynamic":
                assert seen(pair[0][0]) == seen(pair[1][0]), (seed, action)
    assert failed < sequences / 2


def test_one_bad_optimizer_skips_all_and_leaves_what_its_first_step_would_create():
    scaler, layers = dynamic(init_scale=8.0), [torch.nn.Linear(2, 1) for _ in range(2)]
    optimizers = [torch.optim.AdamW(layer.named_parameters()) for layer in layers]
    before = [layer.weight.detach().clone() for layer in layers]
    for layer in layers:
        layer.weight.grad, layer.bias.grad = torch.ones(1, 2), torch.ones(1)
    layers[1].weight.grad[0, 1] = NAN
    for each_call in scaler.unscale_, scaler.step:
        for optimizer in optimizers:
            each_call(optimizer)
    assert scaler.report.bad == {"optimizer 1, weight": 1} and not scaler.isfinite
    scaler.update()
    assert all(torch.equal(layer.weight, old) for layer, old in zip(layers, before, strict=True))
    assert [len(optimizer.state) for optimizer in optimizers] == [0, 0]
    assert (scaler.get_num_skipped_steps(), scaler.get_scale()) == (2, 4.0)


def test_optimizers_that_are_named_are_unscaled_by_the_first_step_and_others_then_refused():
    optimizers = [sgd(), sgd(), sgd()]
    scaler = dynamic(init_scale=8.0, optimizers=optimizers[:2])
    for bad, optimizer in zip([None, INF, None], optimizers, strict=True):
        set_gradient(optimizer, 8.0, bad)
    for optimizer in optimizers[:2]:
        scaler.step(optimizer)
    assert parameter_of(optimizers[0]).tolist() == [1.0, 2.0, 3.0]
    with pytest.raises(RuntimeError, match="optimizers="):
        scaler.step(optimizers[2])
    assert parameter_of(optimizers[2]).grad.tolist() == [2.0, 4.0, 6.0]


@pytest.mark.parametrize("option, largest", [({"max_gradient_norm": 0.5}, 0.4), ({"max_gradient_value": 0.1}, 0.1)])
def test_optimizer_step_clips_over_all_optimizers(option, largest):
    scaler, parameters = dynamic(init_scale=8.0), [torch.nn.Parameter(torch.zeros(1)) for _ in range(2)]
    optimizers = [torch.optim.SGD([parameter], lr=1.0) for parameter in parameters]
    optimizer_step((parameters[0] * 3 + parameters[1] * 4).sum(), optimizers, scaler, **option)
    assert parameters[1].item() == pytest.approx(-largest, rel=1e-5)
    assert parameters[0].grad is None


def test_float16_gradients_may_have_a_norm_above_256():
    scaler, optimizer = dynamic(init_scale=1.0), sgd((0.0,))
    parameter_of(optimizer).data = torch.zeros(1000).half()
    parameter_of(optimizer).grad = torch.full((1000,), 10.0).half()
    scaler.step(optimizer)
    assert scaler.global_norm.item() == pytest.approx(316.2278)
    assert parameter_of(optimizer)[0] == -10


def test_the_first_scale_is_that_of_the_half_dtype_which_cerebras_pytorch_says_where_it_is_imported(monkeypatch):
    assert dynamic().get_scale() == dynamic(torch.float16, init_scale=2.0**20).get_scale() == 2.0**15
    assert (dynamic("cb16").get_scale(), dynamic(initial_loss_scale=64.0).get_scale()) == (2.0**31, 64.0)
    amp = types.SimpleNamespace(get_half_dtype_str=lambda: "cbfloat16")
    monkeypatch.setitem(sys.modules, "cerebras.pytorch.amp", amp)
    assert dynamic().get_scale() == 2.0**31
    with pytest.warns(UserWarning, match="needs? no loss scaling"):
        dynamic("bfloat16")


@pytest.mark.parametrize("given, scale", [(None, 1.0), (1.0, 1.0), (256, 256.0)])
def test_a_static_scale_checks_nothing(given, scale):
    scaler, optimizer = GradScaler(given), sgd()
    set_gradient(optimizer, scaler.scale(torch.tensor(1.0, dtype=torch.float16)), INF)
    scaler.step(optimizer)
    scaler.update()
    assert parameter_of(optimizer)[0] == 0.75
    assert not parameter_of(optimizer).isfinite().all()
    assert (scaler.get_scale(), scaler.get_num_skipped_steps().item()) == (scale, 0)
    assert scaler.state_dict() == {"loss_scale": scale}


@pytest.mark.parametrize(
    "make, error, text",
    [
        (lambda: dynamic(min_loss_scale=2.0**-15), ValueError, "min_loss_scale"),
        (lambda: dynamic(overflow_tolerance=-0.1), ValueError, "overflow_tolerance"),
        (lambda: dynamic(overflow_tolerance=1.0), ValueError, "below 1"),
        (lambda: dynamic(init_scale=1.0, initial_loss_scale=2.0), TypeError, "one number"),
        (lambda: dynamic(min_loss_scale=4.0, max_loss_scale=2.0), ValueError, "min_scale"),
        (lambda: dynamic(half_dtype="float32"), ValueError, "half_dtype"),
        (lambda: dynamic(max_gradient_norm=-1.0), ValueError, "max_gradient_norm"),
        (lambda: GradScaler("static"), ValueError, "dynamic"),
        (lambda: GradScaler(-1.0), ValueError, "-1"),
        (lambda: dynamic().update(), RuntimeError, "no gradients"),
        (lambda: dynamic().update(2.0), ValueError, "new_scale"),
        (lambda: dynamic().step(sgd()), RuntimeError, "no gradients"),
        (lambda: dynamic().load_state_dict({"loss_scale": NAN}), ValueError, "loss_scale"),
        (lambda: dynamic().load_state_dict({"num_skipped_steps": -1}), ValueError, "num_skipped_steps"),
        (lambda: dynamic().load_state_dict({"steps_since_rescale": -1}), ValueError, "steps"),
        (lambda: optimizer_step(1.0, sgd(), dynamic()), ValueError, "tensor"),
        (lambda: optimizer_step(torch.ones(()), [3], dynamic()), TypeError, "int"),
        (lambda: optimizer_step(torch.ones(()), sgd(), None), TypeError, "NoneType"),
        (lambda: optimizer_step(torch.ones(()), sgd(), dynamic(), 1.0, 1.0), ValueError, "not both"),
        (lambda: optimizer_step(torch.ones(()), sgd(), dynamic(), -1.0), ValueError, "max_gradient_norm"),
        (lambda: pickle.dumps(in_a_step(dynamic())), RuntimeError, "after update"),
    ],
)
def test_what_is_wrong_is_refused(make, error, text):
    with pytest.raises(error, match=text):
        make()


def test_a_nan_that_no_scale_helps_against_ends_the_training_by_name():
    scaler, layer = dynamic(init_scale=2.0**-13), torch.nn.Linear(2, 1)
    optimizer = torch.optim.SGD(layer.named_parameters(), lr=1.0)
    for may_go_on in (True, False):
        layer.weight.grad, layer.bias.grad = torch.tensor([[1.0, NAN]]), torch.ones(1)
        scaler.step(optimizer)
        scaler.update()
        if may_go_on:
            scaler.raise_if_unrecoverable()
    assert (scaler.get_scale().item(), scaler.get_non_clamped_scale().item()) == (2.0**-14, 2.0**-15)
    with pytest.raises(FloatingPointError, match="weight"):
        scaler.raise_if_unrecoverable()


def reloaded(scaler):
    again = dynamic(**OPTIONS)
    again.load_state_dict(scaler.state_dict())
    return again


OPTIONS = {"steps_per_increase": 2, "overflow_tolerance": 0.3, "init_scale": 64.0}


@pytest.mark.parametrize("copied", [reloaded, copy.deepcopy, lambda scaler: pickle.loads(pickle.dumps(scaler))])
def test_a_saved_scaler_goes_on_as_if_it_had_not_stopped(copied):
    for at in range(1, 8):
        scaler = dynamic(**OPTIONS)
        run(scaler, "0010010"[:at])
        again = copied(scaler)
        for bad in "00010010":
            assert run(again, bad) == run(scaler, bad) and seen(again) == seen(scaler), at


def test_checkpoints_from_before_there_were_keys_leave_what_is():
    scaler = dynamic(init_scale=64.0)
    run(scaler, "1")
    before = seen(scaler)
    scaler.load_state_dict({})
    assert seen(scaler) == before
    scaler.load_state_dict({"loss_scale": 16.0, "steps_since_rescale": 7})
    assert seen(scaler) == [16.0, 7, 0, 1, 16.0]
