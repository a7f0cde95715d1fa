# SPDX-License-Identifier: MIT
"""The examples of docs/torch.md run one after another; those for several ranks in two processes."""

import contextlib
import pathlib
import re

import pytest
import torch

import gradscaler
from gradscaler.torch import GradScaler, StallError

ROOT = pathlib.Path(__file__).parents[4]
BLOCKS = re.findall(r"^```(python(?: ranks)?)\n(.*?)^```", (ROOT / "docs/torch.md").read_text(), re.M | re.S)


def world(rank=0):
    """What the guide says is the reader's."""
    torch.manual_seed(rank)
    model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.Tanh(), torch.nn.Linear(16, 4))
    loader = [(torch.randn(32, 8), torch.randn(32, 4)) for _ in range(4)]
    return {
        "torch": torch,
        "device": "cpu",
        "gradscaler": gradscaler,
        "GradScaler": GradScaler,
        "model": model,
        "optimizer": torch.optim.SGD(model.parameters(), lr=0.1),
        "loader": loader,
        "inputs": loader[0][0],
        "targets": loader[0][1],
        "loss_function": torch.nn.functional.mse_loss,
    }


@pytest.fixture(autouse=True)
def on_the_cpu(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)


def run(code, names):
    exec(compile(code, "docs/torch.md", "exec"), names)


def finite(names):
    return all(torch.isfinite(p).all() for p in names["model"].parameters())


def test_the_examples_run_one_after_another(capsys):
    names = world()
    torch._dynamo.reset()
    for kind, code in BLOCKS:
        if kind == "python":
            with torch._dynamo.config.patch(trace_autograd_ops=False):
                run(code, names)
            assert finite(names)
    printed = capsys.readouterr().out
    assert "'0.weight': 128" in printed


def test_the_examples_for_ranks_run_in_two_processes(tmp_path):
    torch.multiprocessing.spawn(ranked, (str(tmp_path / "group"),), nprocs=2)


def ranked(rank, path):
    torch.set_num_threads(1)
    torch.distributed.init_process_group("gloo", init_method=f"file://{path}", rank=rank, world_size=2)
    try:
        ran = 0
        for kind, code in BLOCKS:
            if kind == "python ranks":
                names = world()
                names["loader"] = [(x + rank, y) for x, y in names["loader"]]
                run(code, names)
                norms = [None, None]
                torch.distributed.all_gather_object(norms, names["norm"].item())
                assert norms[0] == norms[1] and 0 < norms[0] < 1e9
                assert not names["scaler"].step_was_skipped
                ran += 1
        assert ran == 3
        torch.distributed.barrier()  # a rank that leaves while another still talks ends that one
    finally:
        torch.distributed.destroy_process_group()


def test_a_guard_keeps_the_scale_at_1_skips_names_and_stops():
    model = torch.nn.Linear(3, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    guard = GradScaler("cpu", policy="guard")
    guard.name_parameters(model)
    before = model.weight.detach().clone()
    for step in range(10):
        optimizer.zero_grad()
        loss = model(torch.ones(4, 3)).sum()
        scaled = guard.scale(loss)
        assert scaled == loss and guard.get_scale() == 1
        scaled.backward()
        model.bias.grad[1] = torch.nan
        guard.step(optimizer)
        assert guard.step_was_skipped and guard.report.bad == {"bias": 1} and torch.equal(model.weight, before)
        if step < 9:
            guard.update()
    with pytest.raises(StallError, match="bias"):
        guard.update()
    fewer = GradScaler("cpu", policy=gradscaler.Policy("guard", max_failed_backoffs=2))
    fewer.scale(torch.zeros(()))
    for step in range(2):
        fewer.step(optimizer)
        with pytest.raises(StallError) if step else contextlib.nullcontext():
            fewer.update()


def test_every_message_of_the_table_is_one_that_the_sources_have():
    paths = [
        ROOT / f"bindings/python/src/gradscaler/torch/{name}.py"
        for name in ("_scaler", "_check", "_grads", "_stall", "_torch", "_ranks")
    ]
    paths += [pathlib.Path(torch.__file__).parent / "amp/grad_scaler.py"]
    sources = re.sub(r'"\s*f?"', "", " ".join(path.read_text() for path in paths))
    table = (ROOT / "docs/torch.md").read_text().split("## Messages")[1].split("\n## ")[0]
    rows = re.findall(r"^\| (?!message|---)(.*?) \|", table, re.M)
    assert len(rows) == 12
    for row in rows:
        for part in re.split(r" ?\.\.\. ?|\[Partial\(|\)\]", row):
            words = part.removeprefix("That ").strip()
            assert not words or words in sources, words
