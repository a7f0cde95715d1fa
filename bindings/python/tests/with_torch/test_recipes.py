# SPDX-License-Identifier: MIT
"""The recipes in examples/torch train the same, to the bit, with torch's class and with ours, and each runs alone."""

import importlib
import math
import pathlib
import runpy
import subprocess
import sys

import pytest
import torch

from gradscaler.torch import GradScaler

EXAMPLES = pathlib.Path(__file__).parents[2] / "examples" / "torch"
RECIPES = sorted(path.stem for path in EXAMPLES.glob("*.py") if path.stem != "loop")  # test_guide.py runs that
OF_PROCESSES = ["distributed", "fsdp", "sharded"]
OURS_ALONE = ["ema"]  # asks what torch's class does not say
HERE = [name for name in RECIPES if name not in OF_PROCESSES + OURS_ALONE]


def recipe(name, monkeypatch):
    monkeypatch.syspath_prepend(EXAMPLES)  # also for processes that the recipe starts
    return importlib.import_module(name)


def trained(train, kind, **options):
    """Parameters, loss, and the scaler, which starts high enough to overflow and grows soon."""
    scaler = kind("cpu", init_scale=2.0**24, growth_interval=4)
    model, loss, *_ = train(scaler, **options)
    return [p.detach() for p in model.parameters()], loss, scaler


@pytest.mark.parametrize("name", HERE)
def test_the_same_bits_as_with_torchs_class(name, monkeypatch):
    train = recipe(name, monkeypatch).train
    theirs, their_loss, their_scaler = trained(train, torch.amp.GradScaler)
    ours, loss, scaler = trained(train, GradScaler)
    assert all(map(torch.equal, ours, theirs))
    state = {name: value for name, value in scaler.state_dict().items() if name != "gradscaler"}
    assert (loss, state) == (their_loss, their_scaler.state_dict())
    assert scaler.get_scale() < 2.0**24 or name == "policy_gradient"  # there were overflows; its gradients are small


@pytest.mark.parametrize("name", HERE + OURS_ALONE)
def test_it_runs_alone_and_says_how_it_went(name, capsys):
    runpy.run_path(str(EXAMPLES / f"{name}.py"), run_name="__main__")
    printed = capsys.readouterr().out
    assert printed.count("\n") == 1
    assert 0 < float(printed.split()[1].rstrip(",")) < 4.0


def run_of_processes(name, monkeypatch, capsys):
    """Runs a recipe of two processes; returns the results of each rank. What it prints is checked."""
    module, spawn, found = recipe(name, monkeypatch), torch.multiprocessing.spawn, []

    def spawn_and_keep(worker, args, nprocs):
        spawn(getattr(module, worker.__name__), args, nprocs)  # a worker of __main__ would be looked for in pytest
        found.extend(args[-1][rank] for rank in range(nprocs))

    with monkeypatch.context() as patch:
        patch.setattr(torch.multiprocessing, "spawn", spawn_and_keep)
        runpy.run_path(str(EXAMPLES / f"{name}.py"), run_name="__main__")
    assert [line.split(":")[0] for line in capsys.readouterr().out.splitlines()] == ["rank 0", "rank 1"]
    return found


def test_an_overflow_of_one_rank_of_fsdp_is_a_skip_of_both():
    command = [sys.executable, EXAMPLES / "fsdp.py"]
    printed = subprocess.run(command, capture_output=True, text=True, check=True, timeout=600).stdout.splitlines()
    assert [line.split(":")[0] for line in printed] == ["rank 0", "rank 1"]
    for line in printed:
        assert line.endswith("skipped steps [3, 6], scale 16384") and 0 < float(line.split()[3].rstrip(",")) < 4.0


def test_the_average_and_the_learning_rate_move_only_with_steps_that_were_taken(monkeypatch):
    ema = recipe("ema", monkeypatch)
    run = ema.Run(GradScaler("cpu", init_scale=2.0**24))
    ema.train(run, 20)
    assert 0 < run.taken < 20 and run.schedule.last_epoch == run.taken
    saved, scaler_json = run.save()

    def go_on(run):
        torch.manual_seed(1)
        return ema.train(run, 10)

    found = []
    for state in (scaler_json, None):  # with the scaler's state, and without
        again = ema.Run(GradScaler("cpu", init_scale=2.0**24))
        again.load(saved, state)
        found.append((go_on(again), again.taken))
    (losses, taken), (_, fewer) = found
    assert go_on(run) == losses and fewer < taken == 10


def test_the_fused_clip_trains_as_the_clip_after(monkeypatch):
    """The norm is added up in another order, so that the last bits differ."""
    train = recipe("clip_norm", monkeypatch).train
    apart, _, scaler = trained(train, GradScaler)
    fused, _, fused_scaler = trained(train, GradScaler, fused=True)
    assert fused_scaler.state_dict() == scaler.state_dict()
    torch.testing.assert_close(fused, apart, rtol=1e-4, atol=1e-6)


def test_only_the_bad_micro_batch_is_dropped(monkeypatch):
    train, scaler = recipe("accumulate_checked", monkeypatch).train, GradScaler("cpu", init_scale=1024.0)
    _, loss, dropped = train(scaler, bad=(3, 2))
    _, whole, none = train(GradScaler("cpu", init_scale=1024.0), bad=None)
    assert (dropped, none, scaler.get_scale()) == ([(3, 2)], [], 512.0)
    assert loss == pytest.approx(whole, rel=0.05)


def test_ranks_of_ddp_agree_and_train_as_with_torchs_class(monkeypatch, capsys):
    ours = run_of_processes("distributed", monkeypatch, capsys)
    theirs = recipe("distributed", monkeypatch).run(torch.amp.GradScaler)
    for (parameters, *numbers), (their_parameters, *their_numbers) in zip(ours, theirs, strict=True):
        assert numbers == their_numbers
        assert all(map(torch.equal, parameters, their_parameters))
    assert all(map(torch.equal, ours[0][0], ours[1][0]))
    assert ours[0][2] == 2.0**15  # one overflow, on rank 1


def test_the_stages_of_a_pipeline_train_as_one_model(monkeypatch, capsys):
    """With the overflow of one stage, and clipping by the norm of both."""
    sharded = recipe("sharded", monkeypatch)
    results = run_of_processes("sharded", monkeypatch, capsys)
    (first, norms, scale), (second, their_norms, their_scale) = results
    assert norms == their_norms
    assert scale == their_scale == 2.0**15
    assert [i for i, norm in enumerate(norms) if math.isinf(norm)] == [sharded.BAD_STEP]

    model = torch.nn.Sequential(*sharded.stages())
    optimizer, scaler = torch.optim.AdamW(model.parameters(), lr=0.01), GradScaler("cpu")
    inputs, targets = sharded.data("cpu")
    whole = []
    for step in range(sharded.STEPS):
        optimizer.zero_grad()
        scaler.scale(torch.nn.functional.mse_loss(model(inputs), targets)).backward()
        if step == sharded.BAD_STEP:
            model[0][0].weight.grad[0, 0] = torch.inf
        whole.append(scaler.unscale_(optimizer, max_norm=0.5).item())
        scaler.step(optimizer)
        scaler.update()
    assert norms == pytest.approx(whole, rel=1e-6)
    torch.testing.assert_close([*first, *second], [p.detach() for p in model.parameters()], rtol=1e-5, atol=1e-7)
