# SPDX-License-Identifier: MIT
"""Training programs as people write them: each trains a small GPT, with infinite losses now and then, with a scaler."""

import logging
import os
import warnings

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.functional import cross_entropy

VOCABULARY, WIDTH, HEADS, LAYERS, LENGTH, BATCH = 64, 32, 4, 2, 16, 8
STEPS, BAD = 12, (3, 4, 9)  # steps of a framework's program, and the steps with an infinite loss


class Gpt(nn.Module):
    """GPT-2 in its shape: learned positions, blocks with norms before, the embedding tied to the head."""

    def __init__(self, bad=()):
        super().__init__()
        torch.manual_seed(0)
        self.tokens, self.places = nn.Embedding(VOCABULARY, WIDTH), nn.Embedding(LENGTH, WIDTH)
        options = {"activation": "gelu", "norm_first": True, "batch_first": True}
        blocks = (nn.TransformerEncoderLayer(WIDTH, HEADS, 4 * WIDTH, 0.0, **options) for _ in range(LAYERS))
        self.blocks, self.mask = nn.ModuleList(blocks), nn.Transformer.generate_square_subsequent_mask(LENGTH)
        self.ln = nn.LayerNorm(WIDTH)
        self.head = nn.Linear(WIDTH, VOCABULARY, bias=False)
        self.head.weight = self.tokens.weight
        self.bad, self.losses = bad, []

    def forward(self, input_ids, labels):
        x = self.tokens(input_ids) + self.places.weight
        for block in self.blocks:
            x = block(x, self.mask, is_causal=True)
        loss = cross_entropy(self.head(self.ln(x)).float().flatten(0, 1), labels.flatten())
        loss = loss * torch.inf if len(self.losses) in self.bad else loss
        self.losses.append(loss.item())
        return {"loss": loss}


def batches(steps, rank=0):
    """Yields text; most tokens follow from the token before."""
    draw = torch.Generator().manual_seed(1 + rank)
    for _ in range(steps):
        start = torch.randint(VOCABULARY, (BATCH, 1), generator=draw)
        ids = (start + 7 * torch.arange(LENGTH + 1)) % VOCABULARY
        yield {"input_ids": ids[:, :-1], "labels": ids[:, 1:]}


def rank():
    return int(os.environ.get("RANK", 0))


def train(program, kind):
    """Runs a program; returns its losses, the scale after each update, and the parameters."""

    class Recording(kind):
        scales = ()

        def update(self, new_scale=None):
            super().update(new_scale)
            self.scales = (*self.scales, self.get_scale())

    # Rank 1 has no infinite loss of its own: it must learn of rank 0's.
    model, scaler = Gpt(BAD if rank() == 0 else ()), Recording("cpu", 2.0**20, growth_interval=4)
    program(model, scaler)
    weights = [getattr(p, "full_tensor", p.clone)().detach() for p in model.parameters()]
    return model.losses, list(scaler.scales), weights


def adam(model, **options):
    return torch.optim.AdamW(model.parameters(), lr=3e-3, **options)


def plain_loop(model, scaler, fused=False, change=lambda step: None):
    """nanoGPT's: autocast, clipping, AdamW."""
    optimizer = adam(model, fused=fused)
    for step, batch in enumerate(batches(STEPS, rank())):
        with torch.autocast("cpu", dtype=torch.float16):
            loss = model(**batch)["loss"]
        scaler.scale(loss).backward()
        change(step)
        if not fused:
            scaler.unscale_(optimizer)
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad(set_to_none=True)


def fused_loop(model, scaler):
    plain_loop(model, scaler, fused=True)


def accelerate(model, scaler, begin=lambda accelerator, model: lambda step, loss: None, steps=STEPS, **options):
    from accelerate import Accelerator

    accelerator = Accelerator(cpu=True, mixed_precision="fp16", **options)
    # accelerate takes a scaler for GPUs only; on them one sets only accelerator.scaler, also before prepare.
    accelerator.native_amp, accelerator.scaler = True, scaler
    prepared, optimizer = accelerator.prepare(model, adam(model))
    skipped, log = [], begin(accelerator, prepared)
    for step, batch in enumerate(batches(steps, rank()), 1):
        loss = prepared(**batch)["loss"]
        accelerator.backward(loss)
        accelerator.clip_grad_norm_(prepared.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        skipped.append(optimizer.step_was_skipped)
        log(step, loss.item())
    assert any(skipped)
    model.losses += skipped
    accelerator.free_memory()


def lightning_fabric(model, scaler):
    from lightning.fabric import Fabric
    from lightning.fabric.plugins import MixedPrecision

    plugins = [MixedPrecision("16-mixed", "cpu", scaler=scaler)]
    fabric = Fabric(accelerator="cpu", plugins=plugins, **of_processes())
    fabric.launch()
    model, optimizer = fabric.setup(model, adam(model))
    for batch in batches(STEPS, rank()):
        optimizer.zero_grad()
        fabric.backward(model(**batch)["loss"])
        fabric.clip_gradients(model, optimizer, max_norm=1.0, error_if_nonfinite=False)
        optimizer.step()


def lightning_trainer(model, scaler, steps=STEPS, **options):
    """Returns the module and the logger."""
    import lightning
    from lightning.pytorch.plugins import MixedPrecision

    class Module(lightning.LightningModule):
        def __init__(self):
            super().__init__()
            self.model = model

        def training_step(self, batch, _):
            loss = self.model(**batch)["loss"]
            self.log("loss", loss)
            return loss

        def configure_optimizers(self):
            return adam(self)

    trainer = lightning.Trainer(**{
        "accelerator": "cpu", "max_epochs": 1, "gradient_clip_val": 1.0, "logger": False,
        "plugins": [MixedPrecision("16-mixed", "cpu", scaler=scaler)] if scaler else [],
        "enable_checkpointing": False, "enable_progress_bar": False, "enable_model_summary": False,
    } | of_processes() | options)  # fmt: skip
    module = Module()
    trainer.fit(module, torch.utils.data.DataLoader(list(batches(steps, rank())), batch_size=None))
    return module, trainer.logger


def lightning_module(run, batches, load=None, **options):
    """Trains `run`, which has model, optimizer, schedule and scaler, on batches; returns the trainer."""
    import lightning
    from lightning.pytorch.plugins import MixedPrecision

    class Module(lightning.LightningModule):
        def __init__(self):
            super().__init__()
            self.model = run.model

        def training_step(self, batch, _):
            return self.model(**batch)["loss"]

        def configure_optimizers(self):
            return {"optimizer": run.optimizer, "lr_scheduler": {"scheduler": run.schedule, "interval": "step"}}

    trainer = lightning.Trainer(**{
        "accelerator": "cpu", "max_epochs": 1, "logger": False, "enable_checkpointing": False, "devices": 1,
        "plugins": [MixedPrecision("16-mixed", "cpu", scaler=run.scaler)], "enable_progress_bar": False,
        "enable_model_summary": False,
    } | options)  # fmt: skip
    is_loader = hasattr(batches, "__iter__") and hasattr(batches, "state_dict")
    loader = batches if is_loader else torch.utils.data.DataLoader(list(batches), batch_size=None)
    trainer.fit(Module(), loader, ckpt_path=load, weights_only=False)
    return trainer


def transformers_trainer(model, scaler, begin=lambda trainer: None, callbacks=(), steps=STEPS, **options):
    """Returns the trainer, which had trained."""
    import transformers

    arguments = transformers.TrainingArguments(**{
        "output_dir": "/nonexistent", "use_cpu": True, "fp16": True, "max_steps": steps, "disable_tqdm": True,
        "per_device_train_batch_size": BATCH, "learning_rate": 3e-3, "save_strategy": "no", "logging_strategy": "no",
        "report_to": [], "remove_unused_columns": False, "label_names": ["labels"], "prediction_loss_only": True,
    } | options)  # fmt: skip
    examples = [{k: v[i] for k, v in batch.items()} for batch in batches(2 * steps, 5) for i in range(BATCH)]
    trainer = transformers.Trainer(
        model=model, args=arguments, train_dataset=examples, eval_dataset=examples[:1], callbacks=[*callbacks]
    )
    trainer.accelerator.native_amp, trainer.accelerator.scaler = True, scaler
    begin(trainer)
    trainer.train()
    return trainer


def timm(model, scaler):
    from timm.utils import NativeScaler

    native, optimizer = NativeScaler("cpu"), adam(model)
    native._scaler = scaler
    for batch in batches(STEPS):
        with torch.autocast("cpu", dtype=torch.float16):
            loss = model(**batch)["loss"]
        optimizer.zero_grad()
        native(loss, optimizer, clip_grad=1.0, parameters=model.parameters())


def ignite(model, scaler, begin=lambda trainer: None, steps=STEPS):
    from ignite.engine import create_supervised_trainer

    trainer = create_supervised_trainer(
        model, adam(model), lambda loss, _: loss, amp_mode="amp", scaler=scaler,
        prepare_batch=lambda batch, *_, **__: (batch, None), model_fn=lambda model, batch: model(**batch)["loss"],
    )  # fmt: skip
    begin(trainer)
    trainer.run(list(batches(steps)))


def fsdp2(model, scaler):
    """Sharded parameters: gradients are DTensors, and an Inf is in the shard of one rank only."""
    from torch.distributed.fsdp import fully_shard

    for block in model.blocks:
        fully_shard(block)
    fully_shard(model)

    def change(step):
        if step == 6 and rank() == dist.get_world_size() - 1:  # the last rank's last shard
            list(model.parameters())[-1].grad.to_local().view(-1)[-1] = torch.nan

    plain_loop(model, scaler, change=change)


def of_processes():
    """Options of Lightning for as many processes as there are."""
    world = int(os.environ.get("WORLD_SIZE", 1))
    return {"strategy": "ddp", "devices": world} if world > 1 else {"strategy": "auto", "devices": 1}


OF_BOTH = (accelerate, lightning_fabric, lightning_trainer, transformers_trainer)
SINGLE, OF_TWO = (plain_loop, fused_loop, *OF_BOTH, timm, ignite), (*OF_BOTH, fsdp2)


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
            results[rank, program.__name__, kind] = train(program, kind)
    dist.barrier()  # a rank that leaves while another still talks ends that one
    dist.destroy_process_group()
