# SPDX-License-Identifier: MIT
"""The scalers of installed packages behind one face: what to give them, what they save, how they step."""

import pickle
import types

import numpy as np


class Peer:
    prefix = None  # where it has its scaler in a checkpoint

    def save(self):
        return self.scaler.state_dict()

    def load(self, state):
        self.scaler.load_state_dict(state)


class Torch(Peer):
    """torch.amp.GradScaler with a real optimizer."""

    format, settings = "torch", {"init_scale": 1024.0, "growth_interval": 5}

    def __init__(self):
        import torch

        self.parameter = torch.nn.Parameter(torch.zeros(1))
        self.optimizer = torch.optim.SGD([self.parameter], lr=0.0)
        self.scaler = torch.amp.GradScaler("cpu", **self.settings)
        self.scaler.scale(torch.ones(1))
        self.full = torch.full

    def step(self, overflow):
        self.parameter.grad = self.full((1,), float("inf") if overflow else 1.0)
        self.scaler.step(self.optimizer)
        self.scaler.update()

    def scale(self):
        return self.scaler.get_scale()


class Flax(Peer):
    """flax DynamicScale, through flax.serialization."""

    format, settings = "flax", {"scale": 1024.0, "growth_interval": 5}

    def __init__(self):
        from flax import serialization
        from flax.training.dynamic_scale import DynamicScale

        self.scaler, self.serialization = DynamicScale(**self.settings), serialization

    def step(self, overflow):
        factor = np.float32(float("inf") if overflow else 1)
        self.scaler, *_ = self.scaler.value_and_grad(lambda x: x * factor)(np.float32(1))

    def scale(self):
        return float(self.scaler.scale)

    def save(self):
        return self.serialization.msgpack_restore(self.serialization.to_bytes(self.scaler))

    def load(self, state):
        self.scaler = self.serialization.from_state_dict(self.scaler, state)


class Jmp(Peer):
    """jmp.DynamicLossScale, its two leaves by name."""

    format, settings = "jmp", {"loss_scale": 1024.0, "period": 5}

    def __init__(self):
        self.load({"loss_scale": self.settings["loss_scale"], "counter": 0})

    def step(self, overflow):
        self.scaler = self.scaler.adjust(np.bool_(not overflow))

    def scale(self):
        return float(self.scaler.loss_scale)

    def save(self):
        return {"loss_scale": self.scaler.loss_scale, "counter": self.scaler.counter}

    def load(self, state):
        import jax.numpy as jnp
        import jmp

        scale, counter = jnp.asarray(state["loss_scale"], "float32"), jnp.asarray(int(state["counter"]))
        self.scaler = jmp.DynamicLossScale(scale, counter, self.settings["period"])


class Keras(Peer):
    """keras LossScaleOptimizer, its variables by name."""

    format, settings = "keras", {"initial_scale": 1024.0, "dynamic_growth_steps": 5}

    def __init__(self):
        import keras

        self.variable, self.array = keras.Variable([0.0]), keras.ops.convert_to_tensor
        self.scaler = keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD(0.0), **self.settings)
        self.scaler.build([self.variable])

    def step(self, overflow):
        self.scaler.apply([self.array([float("inf") if overflow else 1.0])], [self.variable])

    def scale(self):
        return float(self.scaler.dynamic_scale.numpy())

    def save(self):
        return {"step_counter": self.scaler.step_counter, "dynamic_scale": self.scaler.dynamic_scale}

    def load(self, state):
        self.scaler.step_counter.assign(state["step_counter"])
        self.scaler.dynamic_scale.assign(state["dynamic_scale"])


class DeepSpeed(Peer):
    """deepspeed DynamicLossScaler, pickled as its ZeRO checkpoints do."""

    format, prefix = "deepspeed", "loss_scaler"
    settings = {
        "init_scale": 1024.0, "scale_window": 5, "min_scale": 1.0, "delayed_shift": 2, "consecutive_hysteresis": False,
    }  # fmt: skip

    def __init__(self):
        from deepspeed.runtime.fp16 import loss_scaler

        loss_scaler.dist.get_rank = lambda: 1  # only rank 0 logs
        self.scaler = loss_scaler.DynamicLossScaler(**self.settings)

    def step(self, overflow):
        self.scaler.update_scale(overflow)

    def scale(self):
        return self.scaler.cur_scale

    def save(self):
        return pickle.loads(pickle.dumps({"loss_scaler": self.scaler, "zero_stage": 2}))

    def load(self, state):
        saved = state["loss_scaler"]
        vars(self.scaler).update(saved if isinstance(saved, dict) else vars(saved))


class Paddle(Peer):
    """paddle.amp.GradScaler with a real optimizer."""

    format = "paddle_dygraph"
    settings = {"init_loss_scaling": 1024.0, "incr_every_n_steps": 5, "decr_every_n_nan_or_inf": 2}

    def __init__(self):
        import paddle
        from paddle.amp import grad_scaler

        # It turns itself off where there is no GPU.
        place = types.SimpleNamespace(is_gpu_place=lambda: True)
        grad_scaler._dygraph_tracer = lambda: types.SimpleNamespace(_expected_place=place)
        grad_scaler.float = lambda x: getattr(x, "item", x.__float__)()  # its message fails with NumPy from 2.4 on
        self.scaler = paddle.amp.GradScaler(**self.settings)

    def step(self, overflow):
        self.scaler._cache_found_inf = overflow
        self.scaler._update()

    def scale(self):
        return self.scaler._scale.item()

    def load(self, state):
        super().load({**state, "scale": np.reshape(state["scale"], 1)})  # it takes the first element


LIGHT = [Torch, Flax, Jmp, Keras]
HEAVY = [DeepSpeed, Paddle]
