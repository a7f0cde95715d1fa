"""The C functions, one to one; a status that is not GSC_OK is raised as Error.

Generated from bindings/abi.toml by bindings/generate.py. Do not edit.
"""

from collections.abc import Sequence
from typing import Any

Buffer = Any
Arrays = Sequence[Any]
Pair = tuple[Arrays, Arrays]
Held = Any
Context = Any

class Error(ValueError):
    status: int
    argument: int
    index: int
    name: str

GSC_OK: int
GSC_ERROR_NULL: int
GSC_ERROR_STRUCT_SIZE: int
GSC_ERROR_PRESET: int
GSC_ERROR_POLICY: int
GSC_ERROR_STATE: int
GSC_ERROR_REPORT: int
GSC_ERROR_FACTOR: int
GSC_ERROR_VALUE: int
GSC_ERROR_DTYPE: int
GSC_ERROR_COUNT: int
GSC_ERROR_OVERLAP: int
GSC_ERROR_WANT: int
GSC_ERROR_CAPACITY: int
GSC_ERROR_CORRUPT: int
GSC_ERROR_VERSION: int
GSC_ERROR_UNAVAILABLE: int
GSC_ERROR_MEMORY: int
GSC_ERROR_DEVICE: int
GSC_GROWTH_REACHED: int
GSC_GROWTH_EXACT: int
GSC_GROWTH_EVERY: int
GSC_GROWTH_STEPS: int
GSC_LIMIT_CLAMP: int
GSC_LIMIT_ALWAYS: int
GSC_LIMIT_KEEP: int
GSC_LIMIT_STOP: int
GSC_RESET_ON_GROWTH: int
GSC_RESET_ON_GOOD_STEP: int
GSC_RESET_ON_BACKOFF: int
GSC_ARITHMETIC_F64: int
GSC_ARITHMETIC_F32_ONCE: int
GSC_ARITHMETIC_F32: int
GSC_ARITHMETIC_F32_FLUSH: int
GSC_OVERFLOW_ELEMENT: int
GSC_OVERFLOW_NORM: int
GSC_QUIRK_TOLERATE_BELOW: int
GSC_QUIRK_OVERFLOW_COUNTS: int
GSC_WANT_COUNTS: int
GSC_WANT_FIRST_BAD: int
GSC_WANT_NORM: int
GSC_WANT_AMAX: int
GSC_WANT_UNDERFLOW: int
GSC_WANT_HISTOGRAM: int
GSC_EVENT_GREW: int
GSC_EVENT_BACKED_OFF: int
GSC_EVENT_SKIPPED: int
GSC_EVENT_ABSORBED: int
GSC_EVENT_AT_CEILING: int
GSC_EVENT_AT_FLOOR: int
GSC_EVENT_STALLED: int
GSC_EVENT_STOPPED: int
GSC_SAVED_SIZE: int
GSC_F32: int
GSC_F64: int
GSC_F16: int
GSC_BF16: int
GSC_F8_E4M3FN: int
GSC_F8_E5M2: int
GSC_CB16: int
GSC_COMPLEX64: int
GSC_COMPLEX128: int

def gsc_status_string(status: int, /) -> str | None: ...
def gsc_version() -> int: ...
def gsc_policy_preset(name: str, out: Buffer, /) -> None: ...
def gsc_policy_check(policy: Buffer, /) -> None: ...
def gsc_preset_count() -> int: ...
def gsc_preset_name(index: int, /) -> str | None: ...
def gsc_preset_summary(index: int, /) -> str | None: ...
def gsc_context_create_cpu(threads: int, /) -> Context: ...
def gsc_prepare(on: Context | None, /) -> None: ...
def gsc_get_info(out: Buffer, /) -> None: ...
def gsc_factor_init(scale: float, out: Buffer, /) -> None: ...
def gsc_factor_multiply(on: Context | None, factor: Buffer, by: float, out: Buffer, /) -> None: ...
def gsc_merge(on: Context | None, a: Buffer, b: Buffer, out: Buffer, /) -> None: ...
def gsc_state_init(on: Context | None, policy: Buffer, out: Buffer, /) -> None: ...
def gsc_update(on: Context | None, policy: Buffer, state: Buffer, report: Buffer, out: Buffer, /) -> None: ...
def gsc_set_scale(on: Context | None, policy: Buffer, state: Buffer, scale: float, out: Buffer, /) -> None: ...
def gsc_state_save(policy: Buffer, state: Buffer, /) -> bytes: ...
def gsc_state_load(bytes: Buffer, policy: Buffer | None, state: Buffer, /) -> None: ...
def gsc_dtype_size(dtype: int, /) -> int: ...
def gsc_scale(on: Context | None, factor: Buffer | None, tensors_and_out: Pair | Held, /) -> None: ...
def gsc_check(on: Context | None, factor: Buffer | None, tensors: Arrays | Held, want: int, report: Buffer, /) -> None: ...
def gsc_unscale(on: Context | None, factor: Buffer | None, tensors_and_out: Pair | Held, want: int, report: Buffer | None, /) -> None: ...
def gsc_clip_value(on: Context | None, factor: Buffer | None, limit: float, tensors_and_out: Pair | Held, want: int, report: Buffer | None, /) -> None: ...
def gsc_accumulate(on: Context | None, factor: Buffer | None, tensors_and_out: Pair | Held, want: int, report: Buffer, /) -> None: ...
def gsc_clip_factor(on: Context | None, report: Buffer, factor: Buffer | None, max_norm: float, out: Buffer, /) -> None: ...
def gsc_workspace_size(on: Context | None, tensors: Arrays | Held, want: int, /) -> int: ...
def hold(tensors: Arrays, out: Arrays, /) -> Held: ...
def cuda_open(ordinal: int, /) -> int: ...
def cuda_hold(tensors: Arrays, out: Arrays | None, device: int, order: int, /) -> Held: ...
def cuda_call(
    function: str, context: int, stream: int, workspace: int, size: int, factor: int, limit: float,
    held: Held, want: int, report: int, /,
) -> int: ...
