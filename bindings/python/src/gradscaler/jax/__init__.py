# SPDX-License-Identifier: MIT
"""Loss scaling in JAX: pytrees that live inside jit, and one pass over the gradients.

    scaler = gradscaler.jax.Scaler("recommended")

    @jax.jit
    def train_step(scaler, params, batch):
        grads = jax.grad(lambda p: scaler.scale(loss(p, batch)))(params)
        grads, report = scaler.unscale(grads, dtype=jnp.float32)
        params = gradscaler.jax.select_tree(report.overflow, params, step(params, grads))
        return scaler.update(report), params

On the CPU, and on CUDA where its driver is there, the library's own compiled code does the work inside of the program
that XLA runs; on other platforms jax.numpy does, with the library on the host: `backend()` tells. The names of jmp and
eFormer are here, too.
"""

from ._call import Backend, backend
from ._loss_scale import DynamicLossScale, LossScaleConfig, NoOpLossScale, StaticLossScale, all_finite, select_tree
from ._optax import ScaledState, scaled
from ._precision import DtypePolicy, PrecisionHandler, Step
from ._scaler import Report, Scaler, ValueAndGrad

__all__ = [
    "Backend",
    "DtypePolicy",
    "DynamicLossScale",
    "LossScaleConfig",
    "NoOpLossScale",
    "PrecisionHandler",
    "Report",
    "ScaledState",
    "Scaler",
    "StaticLossScale",
    "Step",
    "ValueAndGrad",
    "all_finite",
    "backend",
    "scaled",
    "select_tree",
]
