# SPDX-License-Identifier: MIT
"""The examples of docs/torch.md run one after another; in two processes those for ranks, also of docs/ranks.md."""

import pathlib
import re
import runpy

import pytest
import torch

import gradscaler
from gradscaler.torch import GradScaler

ROOT = pathlib.Path(__file__).parents[4]
BLOCKS = re.findall(r"^```(python(?: ranks)?)\n(.*?)^```", (ROOT / "docs/torch.md").read_text(), re.M | re.S)


def world():
    """Returns what the guide leaves to the reader."""
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.Tanh(), torch.nn.Linear(16, 4))
    loader = [(torch.randn(32, 8), torch.randn(32, 4)) for _ in range(4)]
    names = {"torch": torch, "device": "cpu", "gradscaler": gradscaler, "GradScaler": GradScaler, "model": model}
    names |= {"optimizer": torch.optim.SGD(model.parameters(), lr=0.1), "loss_function": torch.nn.functional.mse_loss}
    return names | {"loader": loader, "inputs": loader[0][0], "targets": loader[0][1]}


@pytest.fixture(autouse=True)
def on_the_cpu(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)


def run(code, names):
    exec(compile(code, "docs/torch.md", "exec"), names)


def test_the_examples_run_one_after_another(capsys):
    names = world()
    torch._dynamo.reset()
    for kind, code in BLOCKS:
        if kind == "python":
            with torch._dynamo.config.patch(trace_autograd_ops=False):
                run(code, names)
            assert all(torch.isfinite(p).all() for p in names["model"].parameters())
    assert "'0.weight': 128" in capsys.readouterr().out


def test_the_whole_loop_prints_what_the_guide_says_and_resumes_with_the_same_bits(tmp_path):
    loops = runpy.run_path(str(ROOT / "tests/docs/loops.py"))
    program = loops["script"](str(ROOT / "bindings/python/examples/torch/loop.py"))
    folders = loops["check"]("docs/torch.md", program, tmp_path)
    whole, parts = (torch.utils._pytree.tree_flatten(torch.load(folder / "run.checkpoint")) for folder in folders)
    assert whole[1] == parts[1]
    for one, other in zip(whole[0], parts[0], strict=True):
        assert torch.equal(one, other) if isinstance(one, torch.Tensor) else one == other


def test_the_examples_for_ranks_run_in_two_processes(tmp_path):
    torch.multiprocessing.spawn(ranked, (str(tmp_path / "group"),), nprocs=2)


def ranked(rank, path):
    torch.distributed.init_process_group("gloo", init_method=f"file://{path}", rank=rank, world_size=2)
    codes = [code for kind, code in BLOCKS if kind == "python ranks"]
    codes += re.findall(r"^```python torch\n(.*?)^```", (ROOT / "docs/ranks.md").read_text(), re.M | re.S)
    assert len(codes) == 4
    for code in codes:
        names = world()
        names["loader"] = [(x + rank, y) for x, y in names["loader"]]
        run(code, names)
        norms = [None, None]
        torch.distributed.all_gather_object(norms, float(names.get("norm", 1)))
        assert norms[0] == norms[1] and 0 < norms[0] < 1e9
        assert not getattr(names.get("scaler"), "step_was_skipped", False)
    torch.distributed.barrier()  # a rank that leaves while another still talks ends that one
    torch.distributed.destroy_process_group()


def test_every_message_of_the_table_is_one_that_the_sources_have():
    ours = ("_scaler", "_check", "_grads", "_stall", "_torch", "_ranks")
    paths = [ROOT / f"bindings/python/src/gradscaler/torch/{name}.py" for name in ours]
    paths += [pathlib.Path(torch.__file__).parent / "amp/grad_scaler.py"]
    sources = re.sub(r'"\s*f?"', "", " ".join(path.read_text() for path in paths))
    table = (ROOT / "docs/torch.md").read_text().split("## Messages")[1].split("\n## ")[0]
    rows = re.findall(r"^\| (?!message|---)(.*?) \|", table, re.M)
    assert len(rows) == 14
    for row in rows:
        for part in re.split(r" ?\.\.\. ?|\[Partial\(|\)\]", row):
            words = part.removeprefix("That ").strip()
            assert not words or words in sources, words
