# SPDX-License-Identifier: MIT
"""A run that is saved, and goes on in a fresh trainer, has the scale, the counts, the guard and the bits of one run."""

import programs
import pytest
import torch
import torch.distributed as dist
from torch.distributed.fsdp import fully_shard

from gradscaler import Policy
from gradscaler.torch import GradScaler

STEPS, BAD, OUTLIERS = 40, (2, 17, 30), (12, 25)


def batches():
    draw = torch.Generator().manual_seed(0)
    found = [{"x": torch.randn(8, 4, generator=draw)} for _ in range(STEPS)]
    for i, factor in {**dict.fromkeys(BAD, torch.inf), **dict.fromkeys(OUTLIERS, 100.0)}.items():
        found[i] = {"x": found[i]["x"] * factor}
    return found


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.layers = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Tanh(), torch.nn.Linear(8, 2))

    def forward(self, x):
        return {"loss": (self.layers(x) * x[:, :2] - 1).square().mean()}


class Run:
    """A fresh trainer with the parts of a training."""

    def __init__(self, is_sharded):
        programs.quiet()
        rules = {"growth_interval": 5, "guard_ratio": 3.0, "guard_warmup": 3, "init_scale": 2.0**10}
        self.model, self.scaler = Net(), GradScaler("cpu", policy=Policy("torch", **rules))
        self.is_sharded = is_sharded

    def shard(self):
        if self.is_sharded:
            for layer in self.model.layers[0], self.model.layers[2], self.model:
                fully_shard(layer)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=0.05)
        self.schedule = torch.optim.lr_scheduler.ExponentialLR(self.optimizer, 1.0)

    def result(self):
        whole = [getattr(p, "full_tensor", p.clone)().detach().tolist() for p in self.model.parameters()]
        return self.scaler.state_dict(), self.scaler.total_guard_skips, whole


class Wrapper(torch.optim.Optimizer):
    """An optimizer with a scaler, as trainers have: each of its steps goes through the scaler."""

    def __init__(self, optimizer, scaler):
        self.optimizer, self.scaler = optimizer, scaler

    state = property(lambda self: self.optimizer.state)
    param_groups = property(lambda self: self.optimizer.param_groups)

    def step(self, closure=None):
        self.scaler.step(self.optimizer)
        self.scaler.update()

    def __getattr__(self, name):
        return getattr(self.optimizer, name)

    def zero_grad(self, set_to_none=True):
        self.optimizer.zero_grad(set_to_none)

    def state_dict(self):
        return self.optimizer.state_dict()

    def load_state_dict(self, state_dict):
        self.optimizer.load_state_dict(state_dict)


def checkpoint(run, data, path, at, loaded):
    import torch.distributed.checkpoint as dcp
    from torch.distributed.checkpoint import state_dict

    run.shard()
    optimizer = Wrapper(run.optimizer, run.scaler)

    def parts():
        model, optim = state_dict.get_state_dict(run.model, optimizer)
        return {"model": model, "optim": optim, "scaler": run.scaler.state_dict()}

    if loaded:
        found = parts()
        dcp.load(found, checkpoint_id=path(loaded))
        run.scaler.load_state_dict(found["scaler"])
        state_dict.set_state_dict(
            run.model, optimizer, model_state_dict=found["model"], optim_state_dict=found["optim"]
        )
    for i, batch in enumerate(data[loaded:], loaded + 1):
        optimizer.zero_grad()
        run.scaler.scale(run.model(**batch)["loss"]).backward()
        optimizer.step()
        if i in at:
            dcp.save(parts(), checkpoint_id=path(i))


def accelerate(run, data, path, at, loaded):
    from accelerate import Accelerator
    from accelerate.state import AcceleratorState, PartialState
    from accelerate.utils import DistributedType, FullyShardedDataParallelPlugin

    AcceleratorState._reset_state(True)
    accelerator = Accelerator(cpu=True)
    accelerator.native_amp, accelerator.scaler = True, run.scaler
    run.shard()
    model, optimizer = accelerator.prepare(run.model, run.optimizer)
    if run.is_sharded:  # accelerate shards on devices alone: on the CPU it only saves and loads the shards
        plugin = FullyShardedDataParallelPlugin(fsdp_version=2, state_dict_type="SHARDED_STATE_DICT")
        accelerator.state.fsdp_plugin = plugin
        for state in accelerator.state, PartialState():
            state.distributed_type = DistributedType.FSDP
    if loaded:
        accelerator.load_state(path(loaded))
    for i, batch in enumerate(data[loaded:], loaded + 1):
        accelerator.backward(model(**batch)["loss"])
        optimizer.step()
        optimizer.zero_grad()
        if i in at:
            accelerator.save_state(path(i))
    accelerator.free_memory()
    AcceleratorState._reset_state(True)


class Loader:
    """A loader that goes on where it was."""

    def __init__(self, data):
        self.data, self.begin, self.at = data, 0, 0

    def __len__(self):
        return len(self.data)

    def __iter__(self):
        for i in range(self.begin, len(self.data)):
            self.at = i + 1
            yield self.data[i]

    def state_dict(self):
        return {"at": self.at}

    def load_state_dict(self, state):
        self.begin = state["at"]


def lightning(run, data, path, at, loaded):
    import lightning

    class Save(lightning.Callback):
        def on_train_batch_end(self, trainer, module, outputs, batch, batch_idx):
            if batch_idx + 1 in at:
                trainer.save_checkpoint(path(batch_idx + 1))

    run.shard()
    programs.lightning_module(run, Loader(data), path(loaded) if loaded else None, callbacks=[Save()])


@pytest.fixture
def one_rank(tmp_path):
    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/group", rank=0, world_size=1)
    yield
    dist.destroy_process_group()


TRAINERS = {"checkpoint": checkpoint, "accelerate": accelerate, "lightning": lightning}


@pytest.mark.parametrize(
    ("trainer", "is_sharded"),
    [("checkpoint", False), ("checkpoint", True), ("accelerate", False), ("accelerate", True), ("lightning", False)],
    ids=lambda value: value if isinstance(value, str) else "fsdp2" if value else "plain",
)  # Lightning shards on devices alone
def test_a_resume_changes_nothing(trainer, is_sharded, one_rank, tmp_path, request):
    if trainer != "checkpoint":
        pytest.importorskip(trainer)
    train, data = TRAINERS[trainer], batches()
    at = range(1, STEPS) if request.config.getoption("--long") else (1, 7, 20, 39)
    path = lambda i: str(tmp_path / str(i))  # noqa: E731
    whole = Run(is_sharded)
    train(whole, data, path, at, 0)
    expected = whole.result()
    assert whole.scaler.metrics()["total_overflows"] >= len(BAD) and expected[1] >= 1
    for i in at:
        resumed = Run(is_sharded)
        train(resumed, data, path, (), i)
        assert resumed.result() == expected, i
