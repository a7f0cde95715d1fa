# SPDX-License-Identifier: MIT
"""Training programs as people write them, on a small GPT: each takes a kind of GradScaler and returns what came of it.

A program returns its losses, the scale after each step, and the parameters. Losses of some steps are made infinite.
"""

import logging
import os
import warnings

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.functional import cross_entropy, scaled_dot_product_attention

VOCABULARY, WIDTH, HEADS, LAYERS, LENGTH, BATCH = 64, 32, 4, 2, 16, 8
STEPS, BAD = 12, (3, 4, 9)  # steps of a framework's program, and those whose loss is infinite


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.ln_1, self.ln_2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.attention, self.projection = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.mlp = nn.Sequential(nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH))

    def forward(self, x):
        heads = self.attention(self.ln_1(x)).unflatten(-1, (3, HEADS, -1)).permute(2, 0, 3, 1, 4)
        x = x + self.projection(scaled_dot_product_attention(*heads, is_causal=True).transpose(1, 2).flatten(2))
        return x + self.mlp(self.ln_2(x))


class Gpt(nn.Module):
    """GPT-2 in its shape: learned positions, blocks with norms before, the embedding tied to the head."""

    def __init__(self, bad=()):
        super().__init__()
        torch.manual_seed(0)
        self.tokens, self.places = nn.Embedding(VOCABULARY, WIDTH), nn.Embedding(LENGTH, WIDTH)
        self.blocks = nn.ModuleList(Block() for _ in range(LAYERS))
        self.ln = nn.LayerNorm(WIDTH)
        self.head = nn.Linear(WIDTH, VOCABULARY, bias=False)
        self.head.weight = self.tokens.weight
        self.bad, self.calls = bad, 0

    def forward(self, input_ids, labels):
        x = self.tokens(input_ids) + self.places.weight
        for block in self.blocks:
            x = block(x)
        loss = cross_entropy(self.head(self.ln(x)).float().flatten(0, 1), labels.flatten())
        self.calls += 1
        return {"loss": loss * torch.inf if self.calls - 1 in self.bad else loss}


def batches(steps, rank=0):
    """Text of which each token follows from the one before, mostly."""
    draw = torch.Generator().manual_seed(1 + rank)
    for _ in range(steps):
        start = torch.randint(VOCABULARY, (BATCH, 1), generator=draw)
        ids = (start + 7 * torch.arange(LENGTH + 1)) % VOCABULARY
        yield {"input_ids": ids[:, :-1], "labels": ids[:, 1:]}


def bad_on(rank):
    """Rank 1 has no infinite loss of its own: it must learn of that of rank 0."""
    return BAD if rank == 0 else ()


def weights(model):
    return [p.detach().clone() for p in model.parameters()]


def rank():
    return int(os.environ.get("RANK", 0))


def plain_loop(kind, steps, fused=False):
    """nanoGPT's: autocast, clipping, AdamW."""
    model, scaler = Gpt(bad=(20, 21, 150)), kind("cpu", 2.0**24, growth_interval=25)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3, fused=fused)
    losses, scales = [], []
    for batch in batches(steps):
        with torch.autocast("cpu", dtype=torch.float16):
            loss = model(**batch)["loss"]
        scaler.scale(loss).backward()
        if not fused:
            scaler.unscale_(optimizer)
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad(set_to_none=True)
        losses.append(loss.item())
        scales.append(scaler.get_scale())
    return losses, scales, weights(model)


def accelerate(kind):
    from accelerate import Accelerator

    accelerator = Accelerator(cpu=True, mixed_precision="fp16")
    # Which takes a scaler for GPUs only; on them one sets accelerator.scaler alone, and before prepare, too.
    accelerator.native_amp, accelerator.scaler = True, kind("cpu", 2.0**20, growth_interval=4)
    model = Gpt(bad_on(rank()))
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    model, optimizer = accelerator.prepare(model, optimizer)
    losses, scales = [], []
    for batch in batches(STEPS, rank()):
        loss = model(**batch)["loss"]
        accelerator.backward(loss)
        accelerator.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        losses += [loss.item(), optimizer.step_was_skipped]
        scales.append(accelerator.scaler.get_scale())
    assert any(losses[1::2])
    accelerator.free_memory()
    return losses, scales, weights(model)


def lightning_fabric(kind):
    from lightning.fabric import Fabric
    from lightning.fabric.plugins import MixedPrecision

    scaler = kind("cpu", 2.0**20, growth_interval=4)
    precision = MixedPrecision("16-mixed", "cpu", scaler=scaler)
    fabric = Fabric(accelerator="cpu", plugins=[precision], **of_processes())
    fabric.launch()
    model = Gpt(bad_on(rank()))
    model, optimizer = fabric.setup(model, torch.optim.AdamW(model.parameters(), lr=3e-3))
    losses, scales = [], []
    for batch in batches(STEPS, rank()):
        optimizer.zero_grad()
        loss = model(**batch)["loss"]
        fabric.backward(loss)
        fabric.clip_gradients(model, optimizer, max_norm=1.0, error_if_nonfinite=False)
        optimizer.step()
        losses.append(loss.item())
        scales.append(scaler.get_scale())
    return losses, scales, weights(model)


def lightning_trainer(kind):
    import lightning
    from lightning.pytorch.plugins import MixedPrecision

    scaler = kind("cpu", 2.0**20, growth_interval=4)
    losses, scales = [], []

    class Module(lightning.LightningModule):
        def __init__(self):
            super().__init__()
            self.model = Gpt(bad_on(rank()))

        def training_step(self, batch, _):
            loss = self.model(**batch)["loss"]
            losses.append(loss.item())
            return loss

        def on_train_batch_end(self, *_):
            scales.append(scaler.get_scale())

        def configure_optimizers(self):
            return torch.optim.AdamW(self.parameters(), lr=3e-3)

    module = Module()
    trainer = lightning.Trainer(
        accelerator="cpu", max_epochs=1, plugins=[MixedPrecision("16-mixed", "cpu", scaler=scaler)],
        gradient_clip_val=1.0, logger=False, enable_checkpointing=False, enable_progress_bar=False,
        enable_model_summary=False, **of_processes(),
    )  # fmt: skip
    trainer.fit(module, torch.utils.data.DataLoader(list(batches(STEPS, rank())), batch_size=None))
    return losses, scales, weights(module)


def transformers_trainer(kind):
    import transformers

    losses, scales = [], []

    class Trainer(transformers.Trainer):
        def training_step(self, *args, **kwargs):
            loss = super().training_step(*args, **kwargs)
            losses.append(loss.item())
            return loss

    class Scales(transformers.TrainerCallback):
        def on_step_end(self, *_, **__):
            scales.append(scaler.get_scale())

    arguments = transformers.TrainingArguments(
        output_dir="/nonexistent", use_cpu=True, fp16=True, max_steps=STEPS,
        per_device_train_batch_size=BATCH, learning_rate=3e-3, save_strategy="no", logging_strategy="no", report_to=[],
        disable_tqdm=True, remove_unused_columns=False,
    )  # fmt: skip
    examples = [{k: v[i] for k, v in batch.items()} for batch in batches(2 * STEPS, 5) for i in range(BATCH)]
    trainer = Trainer(model=Gpt(bad_on(rank())), args=arguments, train_dataset=examples, callbacks=[Scales()])
    scaler = kind("cpu", 2.0**20, growth_interval=4)
    trainer.accelerator.native_amp, trainer.accelerator.scaler = True, scaler
    trainer.train()
    return losses, scales, weights(trainer.model)


def timm(kind):
    from timm.utils import NativeScaler

    model, native = Gpt(bad_on(rank())), NativeScaler("cpu")
    native._scaler = kind("cpu", 2.0**20, growth_interval=4)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    losses, scales = [], []
    for batch in batches(STEPS):
        with torch.autocast("cpu", dtype=torch.float16):
            loss = model(**batch)["loss"]
        optimizer.zero_grad()
        native(loss, optimizer, clip_grad=1.0, parameters=model.parameters())
        losses.append(loss.item())
        scales.append(native._scaler.get_scale())
    return losses, scales, weights(model)


def ignite(kind):
    from ignite.engine import Events, create_supervised_trainer

    model, scaler = Gpt(bad_on(rank())), kind("cpu", 2.0**20, growth_interval=4)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    losses, scales = [], []
    trainer = create_supervised_trainer(
        model, optimizer, lambda loss, _: loss, amp_mode="amp", scaler=scaler,
        prepare_batch=lambda batch, *_, **__: (batch, None),
        model_fn=lambda model, batch: model(**batch)["loss"], output_transform=lambda x, y, z, loss: loss.item(),
    )  # fmt: skip

    @trainer.on(Events.ITERATION_COMPLETED)
    def record(engine):
        losses.append(engine.state.output)
        scales.append(scaler.get_scale())

    trainer.run(list(batches(STEPS)))
    return losses, scales, weights(model)


def fsdp2(kind):
    """Sharded parameters: gradients are DTensors, and an Inf is in the shard of one rank only."""
    from torch.distributed.fsdp import fully_shard

    model, scaler = Gpt(bad_on(rank())), kind("cpu", 2.0**20, growth_interval=4)
    for block in model.blocks:
        fully_shard(block)
    fully_shard(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    losses, scales = [], []
    for step, batch in enumerate(batches(STEPS, rank())):
        with torch.autocast("cpu", dtype=torch.float16):
            loss = model(**batch)["loss"]
        scaler.scale(loss).backward()
        if step == 6:  # the last rank's last shard
            last = list(model.parameters())[-1].grad.to_local()
            if rank() == dist.get_world_size() - 1:
                last.view(-1)[-1] = torch.nan
        scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
        losses.append(loss.item())
        scales.append(scaler.get_scale())
    return losses, scales, [p.full_tensor().detach() for p in model.parameters()]


def of_processes():
    """Options of Lightning for as many processes as there are."""
    world = int(os.environ.get("WORLD_SIZE", 1))
    return {"strategy": "ddp", "devices": world} if world > 1 else {"strategy": "auto", "devices": 1}


SINGLE = (accelerate, lightning_fabric, lightning_trainer, transformers_trainer, timm, ignite)
OF_TWO = (*SINGLE[:4], fsdp2)


def quiet():
    """Frameworks that talk about CPUs, seeds and workers."""
    warnings.simplefilter("ignore")
    for name in ("lightning", "lightning.pytorch", "lightning.fabric", "accelerate", "transformers"):
        logging.getLogger(name).setLevel(logging.ERROR)


def ranks_worker(rank, folder, kinds, results):
    """All programs with each kind, as one of two ranks."""
    os.environ |= {
        "RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2", "GROUP_RANK": "0",
        "MASTER_ADDR": "localhost", "MASTER_PORT": "1", "TORCHELASTIC_RUN_ID": "none", "ACCELERATE_USE_CPU": "1",
    }  # fmt: skip
    quiet()
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/group", rank=rank, world_size=2)
    for program in OF_TWO:
        for kind in kinds:
            results[rank, program.__name__, kind] = program(kind)
    dist.barrier()  # a rank that leaves while another still talks ends that one
    dist.destroy_process_group()
