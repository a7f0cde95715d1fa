"""The C functions, one to one; a status that is not GSC_OK is raised as Error.

Generated from include/gradscaler.toml by bindings/python/generate.py. Do not edit.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

Buffer = Any
Arrays = Sequence[Any]
Pair = tuple[Arrays, Arrays]
Held = Any
Context = Any

class Memory:
    def __buffer__(self, flags: int, /) -> memoryview: ...

Place = Buffer | Memory | tuple[Memory, int]
On = Context | tuple[Context, int, Memory | None] | tuple[Context | None, int, Memory | None, int] | None

class Error(ValueError):
    status: int
    argument: int
    index: int
    other: int
    name: str
    field: str
    value: float | None
    low: float | None
    high: float | None
    subject_length: int
    why: str
    requirement: str

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
GSC_ERROR_CAPACITY: int
GSC_ERROR_CORRUPT: int
GSC_ERROR_VERSION: int
GSC_ERROR_UNAVAILABLE: int
GSC_ERROR_MEMORY: int
GSC_ERROR_DEVICE: int
GSC_ERROR_FORMAT: int
GSC_ERROR_MISMATCH: int
GSC_FEATURE_CUDA: int
GSC_GROWTH_REACHED: int
GSC_GROWTH_EXACT: int
GSC_GROWTH_EVERY: int
GSC_GROWTH_ALL_STEPS: int
GSC_LIMIT_CLAMP: int
GSC_LIMIT_ENFORCE: int
GSC_LIMIT_REJECT: int
GSC_LIMIT_STOP: int
GSC_LIMIT_CLAMP_UNLESS_PAST: int
GSC_RESET_ON_GROWTH: int
GSC_RESET_ON_GOOD_STEP: int
GSC_RESET_ON_BACKOFF: int
GSC_ARITHMETIC_F64: int
GSC_ARITHMETIC_F64_TO_F32: int
GSC_ARITHMETIC_F32: int
GSC_ARITHMETIC_F32_FLUSH: int
GSC_TEST_ELEMENT: int
GSC_TEST_NORM: int
GSC_QUIRK_TOLERANCE_EXCLUSIVE: int
GSC_QUIRK_OVERFLOW_IS_GOOD: int
GSC_QUIRK_ALLOW_LOCKOUT: int
GSC_BAD_LOSS_OVERFLOW: int
GSC_BAD_LOSS_HOLD: int
GSC_SAMPLE_AS_IS: int
GSC_SAMPLE_NONE: int
GSC_SAMPLE_THRESHOLD: int
GSC_GUARD_CLIP: int
GSC_GUARD_INCLUSIVE: int
GSC_GUARD_STOP: int
GSC_GUARD_SKIP_IS_GOOD: int
GSC_GUARD_CLIP_PROGRESSIVE: int
GSC_GUARD_VARIANCE_AFTER_MEAN: int
GSC_GUARD_BIAS_CORRECTED: int
GSC_GUARD_CLIP_TO_MEAN: int
GSC_TRAIT_MOVES: int
GSC_TRAIT_GUARDS: int
GSC_TRAIT_NEEDS_NORM: int
GSC_TRAIT_HOLDS: int
GSC_EXEC_WRITE_FAILURES: int
GSC_WANT_NORM: int
GSC_WANT_AMAX: int
GSC_WANT_UNDERFLOW: int
GSC_REPORT_NONE: int
GSC_REPORT_TENSORS: int
GSC_REPORT_NUMBER: int
GSC_REPORT_MERGED: int
GSC_REPORT_FLAG: int
GSC_LOSS_UNKNOWN: int
GSC_LOSS_FINITE: int
GSC_LOSS_NOT_FINITE: int
GSC_MERGE_SHARDS: int
GSC_MERGE_ADDENDS: int
GSC_EVENT_GREW: int
GSC_EVENT_BACKED_OFF: int
GSC_EVENT_SKIPPED: int
GSC_EVENT_ABSORBED: int
GSC_EVENT_AT_CEILING: int
GSC_EVENT_AT_FLOOR: int
GSC_EVENT_BACKOFF_FAILED: int
GSC_EVENT_STOPPED: int
GSC_EVENT_STALE: int
GSC_EVENT_OUTLIER: int
GSC_EVENT_CLIPPED: int
GSC_EVENT_BAD_LOSS: int
GSC_EVENT_EMPTY: int
GSC_OUTCOME_TAKEN: int
GSC_OUTCOME_LET_THROUGH: int
GSC_OUTCOME_CLIPPED: int
GSC_OUTCOME_SKIPPED: int
GSC_OUTCOME_STOPPED: int
GSC_CAUSE_NONE: int
GSC_CAUSE_OVERFLOW: int
GSC_CAUSE_OUTLIER: int
GSC_CAUSE_CEILING: int
GSC_CAUSE_OTHER_STATE: int
GSC_CAUSE_FAILURE: int
GSC_CAUSE_BAD_LOSS: int
GSC_CAUSE_PARAMETER: int
GSC_CAUSE_LOSS_DTYPE: int
GSC_SAVED_SIZE_MAX: int
GSC_ENTRY_UNUSED: int
GSC_ENTRY_NUMBER: int
GSC_ENTRY_TEXT: int
GSC_ENTRY_NULL: int
GSC_ENTRY_INTEGER: int
GSC_ENTRY_BOOLEAN: int
GSC_NOTE_FORMAT: int
GSC_NOTE_MISSING: int
GSC_NOTE_IGNORED: int
GSC_NOTE_CHANGED: int
GSC_NOTE_UNUSABLE: int
GSC_NOTE_LOST: int
GSC_NOTE_FAILURE: int
GSC_NOTE_NOT_FINITE: int
GSC_NOTE_BACKOFF_FAILED: int
GSC_NOTE_OVERFLOWS_OFTEN: int
GSC_NOTE_GUARD_SKIPS: int
GSC_NOTE_GUARD_IDLE: int
GSC_NOTE_UNDERFLOWS: int
GSC_NOTE_NEVER_GROWS: int
GSC_NOTE_CEILING_UNREACHABLE: int
GSC_NOTE_OUTSIDE_LIMITS: int
GSC_NOTE_BAD_LOSSES: int
GSC_NOTE_START_TOO_HIGH: int
GSC_NOTE_NO_GRADIENTS: int
GSC_NOTE_ZEROS: int
GSC_NOTE_GUARD_CLIPS: int
GSC_KEY_SAVED: int
GSC_KEY_SETTING: int
GSC_KEY_NUMBERED: int
GSC_METRIC_LOSS_SCALE: int
GSC_METRIC_SKIP: int
GSC_METRIC_OVERFLOW: int
GSC_METRIC_NORM: int
GSC_METRIC_AMAX: int
GSC_METRIC_ZERO_SHARE: int
GSC_METRIC_TOTAL_OVERFLOWS: int
GSC_METRIC_TOTAL_GUARD_SKIPS: int
GSC_METRIC_TOTAL_GROWTHS: int
GSC_METRIC_TOTAL_BACKOFFS: int
GSC_METRIC_STEPS_SINCE_CHANGE: int
GSC_METRIC_NAN_COUNT: int
GSC_METRIC_INF_COUNT: int
GSC_METRIC_GUARD_THRESHOLD: int
GSC_METRIC_GUARD_MULTIPLIER: int
GSC_METRIC_BAD_LOSS: int
GSC_METRIC_TOTAL_BAD_LOSSES: int
GSC_F32: int
GSC_F64: int
GSC_F16: int
GSC_BF16: int
GSC_F8_E4M3FN: int
GSC_F8_E5M2: int
GSC_CB16: int
GSC_COMPLEX64: int
GSC_COMPLEX128: int
GSC_HISTOGRAM_LENGTH: int
GSC_MEMORY_DEVICE: int
GSC_MEMORY_HOST: int

def gsc_status_string(status: int, /) -> str | None: ...
def gsc_version() -> int: ...
def gsc_version_string() -> str | None: ...
def gsc_has(feature: int, /) -> int: ...
def gsc_policy_preset(name: str, out: Place, /) -> None: ...
def gsc_policy_check(policy: Place, /) -> None: ...
def gsc_policy_resolve(policy: Place, out: Place | None, /) -> int: ...
def gsc_preset_name(index: int, /) -> str | None: ...
def gsc_preset_summary(index: int, /) -> str | None: ...
def gsc_context_create_cpu(options: Mapping[str, Any], /) -> Context: ...
def gsc_info_get(out: Place, /) -> None: ...
def gsc_factor_init(scale: float, out: Place, /) -> None: ...
def gsc_factor_multiply(exec: On, factor: Place, by: float, out: Place, /) -> None: ...
def gsc_report_from_number(number: float, out: Place, /) -> None: ...
def gsc_report_from_flag(overflow: int, out: Place, /) -> None: ...
def gsc_report_merge(exec: On, reports: Place, kind: int, policy: Place | None, out: Place, /) -> None: ...
def gsc_factor_clip_grad_norm(exec: On, factor: Place | None, report: Place, max_norm: float, out: Place, /) -> None: ...
def gsc_state_init(exec: On, policy: Place, out: Place, /) -> None: ...
def gsc_state_init_from(exec: On, policy: Place, from_: Place, out: Place, /) -> None: ...
def gsc_state_update(exec: On, policy: Place, state: Place, report: Place, out: Place, /) -> None: ...
def gsc_state_combine_decisions(exec: On, state: Place, other: Place, out: Place, /) -> None: ...
def gsc_state_reason(state: Place, report: Place | None, evidence: Place | None, per_tensor: Place | None, names: Sequence[str | None] | None, order: Place | None, out: Place, /) -> None: ...
def gsc_factor_clip_outlier(exec: On, factor: Place | None, state: Place, out: Place, /) -> None: ...
def gsc_state_save(policy: Place, state: Place, /) -> bytes: ...
def gsc_state_load(bytes: Buffer, policy: Place | None, state: Place, /) -> None: ...
def gsc_state_digest(policy: Place | None, state: Place | None, /) -> int: ...
def gsc_report_set_rank(exec: On, report: Place, policy: Place | None, state: Place | None, rank: int, out: Place, /) -> None: ...
def gsc_format_name(index: int, /) -> str | None: ...
def gsc_format_summary(index: int, /) -> str | None: ...
def gsc_format_keys(format: str, keys: Place | None, /) -> int: ...
def gsc_state_import(format: str | None, prefix: str | None, entries: Place, policy: Place | None, out_policy: Place, out_state: Place, notes: Place | None, /) -> int: ...
def gsc_state_export(format: str, prefix: str | None, policy: Place, state: Place, entries: Place | None, notes: Place | None, /) -> tuple[int, int]: ...
def gsc_policy_import(format: str, prefix: str | None, entries: Place, policy: Place | None, out_policy: Place, notes: Place | None, /) -> int: ...
def gsc_state_metrics(policy: Place, state: Place, report: Place | None, entries: Place | None, /) -> int: ...
def gsc_state_diagnose(policy: Place, state: Place, report: Place | None, per_tensor: Place | None, steps: int, planned_steps: int, notes: Place | None, /) -> int: ...
def gsc_history_start(policy: Place, preset: str | None, state: Place, names: Sequence[str | None] | None, step: int, rank: int, time: float, run: str | None, /) -> bytes: ...
def gsc_history_line(state: Place, report: Place | None, reason: Place | None, per_tensor: Place | None, names: Sequence[str | None] | None, step: int, time: float, run: str | None, /) -> bytes: ...
def gsc_dtype_name(dtype: int, /) -> str | None: ...
def gsc_dtype_bits(dtype: int, /) -> int: ...
def gsc_dtype_size(dtype: int, /) -> int: ...
def gsc_measure(exec: On, factor: Place | None, tensors: Arrays | Held, options: Mapping[str, Any] | None, report: Place, /) -> None: ...
def gsc_unscale(exec: On, factor: Place | None, tensors_and_out: Pair | Held, options: Mapping[str, Any] | None, report: Place | None, /) -> None: ...
def gsc_scale(exec: On, factor: Place | None, tensors_and_out: Pair | Held, options: Mapping[str, Any] | None, report: Place | None, /) -> None: ...
def gsc_unscale_accumulate(exec: On, factor: Place | None, tensors_and_out: Pair | Held, options: Mapping[str, Any] | None, report: Place, /) -> None: ...
def gsc_copy_unless_skipped(exec: On, state: Place, tensors_and_out: Pair | Held, /) -> None: ...
def gsc_cuda_start() -> None: ...
def gsc_cuda_log() -> str | None: ...
def gsc_context_create_cuda(options: Mapping[str, Any], /) -> Context: ...
def gsc_memory_create(context: Context | None, kind: int, size: int, /) -> Memory: ...
def gsc_memory_copy(exec: On, to: Place, from_: Place, size: int, /) -> None: ...
def gsc_exec_wait(exec: On, /) -> None: ...
def gsc_workspace_size(exec: On, tensors: Arrays | Held, options: Mapping[str, Any] | None, /) -> int: ...
def gsc_comparison_name(index: int, /) -> str | None: ...
def gsc_exec_compare(exec: On, index: int, round: int, /) -> int: ...
def hold(tensors: Arrays, out: Arrays | None, device: int, stream: int | None, /) -> Held: ...
def summary(lists: Held, /) -> tuple[int, int]: ...
def kinds(arrays: list[Any], /) -> set[type]: ...
def metrics(policy: Any, state: Any, report: Any, /) -> dict[str, float]: ...
def with_subnormals(function: Callable[[], Any], /) -> Any: ...
def xla_handler(platform: str, /) -> Any: ...
def xla_workspace(device: int, tensors: bytes, /) -> int: ...
