# SPDX-License-Identifier: MIT
"""Loss scaling in JAX: pytrees that live inside jit, and one pass over the gradients.

    scaler = gradscaler.jax.Scaler("recommended")

    @jax.jit
    def train_step(scaler, params, batch):
        grads = jax.grad(lambda p: scaler.scale(loss(p, batch)))(params)
        grads, report = scaler.unscale(grads, dtype=jnp.float32)
        params = gradscaler.jax.select_tree(report.overflow, params, step(params, grads))
        return scaler.update(report), params

On the CPU, and on CUDA if its driver is installed, the library's compiled code runs inside XLA's program. On other
platforms jax.numpy does the work, together with the library on the host. `backend()` says which.
The module also has the classes of jmp and eFormer by their names.
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
