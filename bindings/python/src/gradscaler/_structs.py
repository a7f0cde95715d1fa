"""The structs and constants of the library.

Generated from include/gradscaler.toml by bindings/python/generate.py. Do not edit.
"""

import contextlib
import ctypes as c
import enum

from . import _gradscaler

SHARED_BYTES = 4194304  # the size from which threads share a list


class Status(enum.IntEnum):
    """Statuses that calls return."""

    OK = 0  # done
    ERROR_NULL = -1  # a required pointer is None
    ERROR_STRUCT_SIZE = -2  # struct_size is not set, or one version lacks a field that the other needs
    ERROR_PRESET = -3  # no preset has this name
    ERROR_POLICY = -4  # a field of the policy is out of range
    ERROR_STATE = -5  # no update leads to this state
    ERROR_REPORT = -6  # the report has an error, or lacks a measurement that the policy needs
    ERROR_FACTOR = -7  # a factor is zero, infinite or not a number
    ERROR_VALUE = -8  # a number is out of range
    ERROR_DTYPE = -9  # unknown dtype
    ERROR_COUNT = -10  # counts differ, or are too large
    ERROR_OVERLAP = -11  # an output overlaps another entry, or overlaps its own input without being in place
    ERROR_CAPACITY = -12  # the buffer is too small
    ERROR_CORRUPT = -13  # the bytes are truncated, damaged or not a saved state
    ERROR_VERSION = -14  # what was saved needs a newer version of the library, or is of a candidate before 0.10
    ERROR_UNAVAILABLE = -15  # this build or machine cannot do it
    ERROR_MEMORY = -16  # out of memory or threads
    ERROR_DEVICE = -17  # the driver failed, or another process made the context
    ERROR_FORMAT = -18  # the entries match no format, or several, or no format has this name
    ERROR_MISMATCH = -19  # the reports are from ranks with different policies or states


class Feature(enum.IntEnum):
    """Features that a build of the library can lack."""

    CUDA = 1  # contexts on CUDA devices, see gradscaler_cuda.h


class Growth(enum.IntEnum):
    """growth_rule: when the scale grows. The count is `good_steps` (ALL_STEPS:
    `steps_since_change`) minus growth_extra_steps."""

    REACHED = 0  # at the interval or past it
    EXACT = 1  # at the interval only; if the count is past it, the scale does not grow until an overflow resets the count
    EVERY = 2  # at each multiple of the interval; a growth does not restart the count
    ALL_STEPS = 3  # as REACHED, but the count is `steps_since_change`, which includes overflows


class LimitRule(enum.IntEnum):
    """ceiling_rule, floor_rule: what happens to a change that would reach or pass the limit."""

    CLAMP = 0  # the scale becomes the limit
    ENFORCE = 1  # as CLAMP, and every update moves a scale past the limit to the limit
    REJECT = 2  # the change is dropped
    STOP = 3  # the change is dropped, with Event.STOPPED
    CLAMP_UNLESS_PAST = 4  # as CLAMP, but a scale that is already past the limit stays


class OverflowReset(enum.IntFlag):
    """overflow_reset, bits: events that set the count of overflows to 0."""

    ON_GROWTH = 1  # a growth
    ON_GOOD_STEP = 2  # a good step
    ON_BACKOFF = 4  # a backoff

    __str__ = enum.Flag.__str__  # names, where IntFlag has a number


class Arithmetic(enum.IntEnum):
    """arithmetic: the number format in which a new scale is computed."""

    F64 = 0  # double
    F64_TO_F32 = 1  # double product, rounded once to float
    F32 = 2  # factors rounded to float first, then a float operation
    F32_FLUSH = 3  # as F32; a result below 2^-126 becomes 0


class OverflowTest(enum.IntEnum):
    """overflow_test: which reports are an overflow."""

    ELEMENT = 0  # an element that is not finite
    NORM = 1  # an element that is not finite, or a sum of squares above the largest float


class Quirk(enum.IntFlag):
    """quirks, bits: behaviour of some frameworks that no new policy should have."""

    TOLERANCE_EXCLUSIVE = 1  # a share equal to overflow_tolerance is not tolerated
    OVERFLOW_IS_GOOD = 2  # an overflow also counts as a good step
    ALLOW_LOCKOUT = 4  # the guard can skip all steps forever: gsc_policy_check does not require guard_max_in_a_row

    __str__ = enum.Flag.__str__  # names, where IntFlag has a number


class BadLoss(enum.IntEnum):
    """bad_loss_rule: what a loss means that was Inf or NaN before it was scaled, see options.loss.
    No scale cures such a loss."""

    OVERFLOW = 0  # the gradients alone decide: if the loss made them Inf or NaN, they are an overflow as any other
    HOLD = 1  # the step is skipped, also if the gradients are finite; the scale, the counts of the scale and the guard stay as they are


class GuardSample(enum.IntEnum):
    """guard_sample: the sample that an outlier adds to the mean and the variance."""

    AS_IS = 0  # its norm
    NONE = 1  # none
    THRESHOLD = 2  # the threshold, or the norm that it was clipped to


class Guard(enum.IntFlag):
    """guard_flags, bits: what happens to an outlier, and how samples count."""

    CLIP = 1  # multiply the gradients by threshold / norm and take the step; without it, or if the threshold is not above 0, skip the step
    INCLUSIVE = 2  # a norm equal to the threshold is also an outlier
    STOP = 4  # at guard_max_in_a_row: Event.STOPPED; without it, this outlier and later ones in the row are let through, and enter the mean as they are
    SKIP_IS_GOOD = 8  # a step skipped as an outlier counts as a good step of the scale; without it, the scale and its counts stay
    CLIP_PROGRESSIVE = 16  # with CLIP: clip to mean + (threshold - mean)^2 / (norm - mean): the larger the norm, the lower
    VARIANCE_AFTER_MEAN = 32  # after the warm-up, the variance takes (sample - mean)^2 with the mean that includes the sample
    BIAS_CORRECTED = 64  # sample n has the weight (1 - guard_decay) / (1 - guard_decay^n), from the first sample on
    CLIP_TO_MEAN = 128  # with CLIP: clip to the mean

    __str__ = enum.Flag.__str__  # names, where IntFlag has a number


class Trait(enum.IntFlag):
    """Traits of a policy, for callers that prepare for them."""

    MOVES = 1  # the scale can change from the first one on
    GUARDS = 2  # the policy judges the norm of finite gradients
    NEEDS_NORM = 4  # updates need sum_squares, or a number
    HOLDS = 8  # a bad loss holds the scale: give calls on tensors the loss

    __str__ = enum.Flag.__str__  # names, where IntFlag has a number


class ExecFlag(enum.IntFlag):
    """Bits of exec.flags.

    A call on host memory with ExecFlag.WRITE_FAILURES that refuses a value of a factor, a
    report or a state also writes the result that a device writes, and still returns the error.
    If this result is sent to other ranks, no rank steps. After another error, send a report of
    zeros with `status` and `overflow`.
    - A factor becomes all zeros, which every call refuses.
    - A report becomes all zeros except status, overflow and found_inf, and so does each report
      of options.per_tensor. If digests differ, status_rank_plus_1 is of the first report that
      differs. gsc_report_set_rank instead copies the report, then sets these three fields and
      the ranks, and sets digest to 0.
    - A state becomes a copy of `state` or `from` with the status that the call returns, SKIPPED
      as its only event, skip and skip_f32 1, and guard_multiplier 0.
    - Tensors and histograms are not written.

    This happens with Status.ERROR_FACTOR, Status.ERROR_REPORT, Status.ERROR_STATE,
    Status.ERROR_VERSION and Status.ERROR_MISMATCH, and with Status.ERROR_VALUE if the product
    of gsc_factor_multiply is no factor. A call that refuses another argument writes only *err.
    A call on a device refuses the flag."""

    WRITE_FAILURES = 1  # also write an error to the result, as a device does

    __str__ = enum.Flag.__str__  # names, where IntFlag has a number


class Want(enum.IntFlag):
    """Measurements that a report can have. Overflow, its position and the counts are always there."""

    NORM = 1  # sum_squares
    AMAX = 2  # amax
    UNDERFLOW = 4  # underflows_to_zero, underflows_to_subnormal

    __str__ = enum.Flag.__str__  # names, where IntFlag has a number


class ReportKind(enum.IntEnum):
    """report.kind: the source of a report."""

    NONE = 0  # none: no call filled the report in; refused unless it has an overflow
    TENSORS = 1  # the tensors of a call
    NUMBER = 2  # a number
    MERGED = 3  # other reports
    FLAG = 4  # a flag: only whether there was an overflow


class Loss(enum.IntEnum):
    """report.loss: the loss before it was scaled, see options.loss."""

    UNKNOWN = 0  # no loss was given
    FINITE = 1  # all its elements are finite
    NOT_FINITE = 2  # an element is Inf or NaN: no scale causes or cures that


class MergeKind(enum.IntEnum):
    """The relation between the gradients of merged reports."""

    SHARDS = 0  # different gradients: shards, layers, optimizers; their sums of squares are added
    ADDENDS = 1  # gradients to add: micro-batches, ranks before an all-reduce; the norm of their sum is unknown


class Event(enum.IntFlag):
    """Bits of state.events: what the last update did."""

    GREW = 1  # the scale became larger
    BACKED_OFF = 2  # the scale became smaller
    SKIPPED = 4  # an overflow, a held bad loss, a skipped outlier, or a failure: leave the parameters alone
    ABSORBED = 8  # skipped, but hysteresis or tolerance kept the scale
    AT_CEILING = 16  # max_scale limited a growth
    AT_FLOOR = 32  # min_scale limited a backoff
    BACKOFF_FAILED = 64  # the overflow could not lower the scale
    STOPPED = 128  # the policy ends the training: by Guard.STOP, max_failed_backoffs or LimitRule.STOP
    STALE = 256  # the report was made with another factor than the one in force: it is late, or was used twice
    OUTLIER = 512  # the guard found an outlier, see guard_threshold; without SKIPPED and CLIPPED, it was let through
    CLIPPED = 1024  # still to do: multiply the gradients by guard_multiplier, or use gsc_factor_clip_outlier
    BAD_LOSS = 2048  # only with BadLoss.HOLD: the loss was not finite before it was scaled, so the step is skipped and the scale is kept
    EMPTY = 4096  # the report has no elements: no tensor had a gradient; it counts as a good step, unless a bad loss is held

    __str__ = enum.Flag.__str__  # names, where IntFlag has a number


class Outcome(enum.IntEnum):
    """reason.outcome: the decision of the last update about its step."""

    TAKEN = 0  # take the step; the gradients stay as they are
    LET_THROUGH = 1  # take the step, although it is an outlier
    CLIPPED = 2  # take the step with gradients times `multiplier`
    SKIPPED = 3  # leave the parameters alone
    STOPPED = 4  # end the training


class Cause(enum.IntEnum):
    """reason.cause: the reason for the decision."""

    NONE = 0  # nothing was wrong
    OVERFLOW = 1  # Inf or NaN that the backward pass made
    OUTLIER = 2  # `value` is above `threshold`, or equal to it with INCLUSIVE
    CEILING = 3  # a growth would reach max_scale, and ceiling_rule stops
    OTHER_STATE = 4  # a combined state decided this
    FAILURE = 5  # the update failed; see state.status
    BAD_LOSS = 6  # a loss was not finite before it was scaled
    PARAMETER = 7  # a parameter was not finite
    LOSS_DTYPE = 8  # the scale is Inf in the dtype of the loss


class EntryKind(enum.IntEnum):
    """entry.kind: the type of the value. All numbers are read alike; gsc_state_export writes the
    types that a loader expects."""

    UNUSED = 0  # no entry: it is ignored
    NUMBER = 1  # `value`, any number
    TEXT = 2  # `text`
    NULL = 3  # null, None, nil: switched off
    INTEGER = 4  # `integer`, and in `value` the same number, rounded
    BOOLEAN = 5  # 0 or 1, in `integer` and in `value`


class NoteKind(enum.IntEnum):
    """note.kind: the subject of a note."""

    FORMAT = 1  # the entries were recognised: `field` is the name of the format
    MISSING = 2  # `field` is not among the entries: `value` is in force, the policy's or the start of a count
    IGNORED = 3  # the key of `entry` has no meaning in this format
    CHANGED = 4  # `field` became `value`, the meaning of `entry` in this policy
    UNUSABLE = 5  # the scale is 0 or infinity: no call multiplies by it; also from gsc_state_diagnose, with the scale as `value`
    LOST = 6  # the format has no key for `field`; `value` is lost
    FAILURE = 7  # diagnosis: a call failed, here or on another rank, and no rank steps; `value` is the status
    NOT_FINITE = 8  # diagnosis: Inf or NaN that no scale cures; `value` is their number, 0 if unknown; `entry` is the last tensor with one, the nearest to the cause; `field` is nans_in_a_row if NaN alone came several times in a row, which is found at every scale, else failed_backoffs
    BACKOFF_FAILED = 9  # diagnosis: overflows cannot lower the scale, `value`; `entry` is the last tensor with Inf or NaN, the nearest to the cause
    OVERFLOWS_OFTEN = 10  # diagnosis: too many steps overflowed since the last growth, or since the first good step if there was none; `value` is their share, 0 to 1. If `field` is growth_interval, growths caused them, and the share is of all steps
    GUARD_SKIPS = 11  # diagnosis: the guard skipped more than half of the steps, or the last ones in a row; `value` is the number since the start
    GUARD_IDLE = 12  # diagnosis: the guard judges none of the steps that are left, because its warm-up is longer; `value` is its samples so far
    UNDERFLOWS = 13  # diagnosis: gradients became zero; `value` is their share, 0 to 1; `entry` is the tensor with the largest share
    NEVER_GROWS = 14  # diagnosis: `value` steps are planned, fewer than a growth needs, and the scale is low; if `field` is good_steps, this count is past the interval of Growth.EXACT
    CEILING_UNREACHABLE = 15  # diagnosis: the planned steps end before the scale reaches 2^15, or max_scale if that is lower; `value` is the scale at the end if no step overflows
    OUTSIDE_LIMITS = 16  # `value`, the scale, is above max_scale or below min_scale: `field` is that limit; from gsc_state_import, and in a diagnosis
    BAD_LOSSES = 17  # diagnosis: losses were not finite before they were scaled, the last one or too many; `value` is their share of the steps, 0 to 1
    START_TOO_HIGH = 18  # diagnosis: every step so far overflowed, because init_scale, `value`, is too high
    NO_GRADIENTS = 19  # diagnosis: in the last `value` steps no tensor had a gradient
    ZEROS = 20  # diagnosis: in the last step `value` tensors had only gradients of 0, and `entry` is the first of them; -1: all gradients were 0. Reports with the norm or amax tell
    GUARD_CLIPS = 21  # diagnosis: the guard clipped the last steps in a row, and its threshold stays below the norms; `value` is the number since the start


class KeyUse(enum.IntFlag):
    """format_key.uses: where a key occurs."""

    SAVED = 1  # checkpoints: gsc_state_import reads it
    SETTING = 2  # settings: gsc_policy_import reads it
    NUMBERED = 4  # the key can end with another number instead of 0, or without _0

    __str__ = enum.Flag.__str__  # names, where IntFlag has a number


class Metric(enum.IntEnum):
    """Metrics of gsc_state_metrics, in this order; the keys are these names in lower case. Later
    versions add some at the end."""

    LOSS_SCALE = 0  # the scale in force, state.factor.scale
    SKIP = 1  # 1 if the last update skipped its step, else 0
    OVERFLOW = 2  # 1 if the last update skipped its step because of an overflow, else 0
    NORM = 3  # norm of all gradients after unscaling, or the number that the policy judged; None if it is not known or some are not finite
    AMAX = 4  # largest magnitude after unscaling, if the report has amax; None if some are not finite
    ZERO_SHARE = 5  # share of the gradients that became zero by unscaling, 0 to 1; None unless the report measured underflows
    TOTAL_OVERFLOWS = 6  # overflows since the start
    TOTAL_GUARD_SKIPS = 7  # steps since the start that were skipped as outliers
    TOTAL_GROWTHS = 8  # growths since the start
    TOTAL_BACKOFFS = 9  # backoffs since the start
    STEPS_SINCE_CHANGE = 10  # steps since the scale changed
    NAN_COUNT = 11  # elements that are NaN; None unless report.kind is TENSORS
    INF_COUNT = 12  # elements that are Inf; None unless report.kind is TENSORS
    GUARD_THRESHOLD = 13  # threshold that the guard compared the norm with; None if it compared none
    GUARD_MULTIPLIER = 14  # state.guard_multiplier: 1, less if clipped, 0 if skipped
    BAD_LOSS = 15  # 1 if the loss was not finite before it was scaled, else 0; None if the loss is not known
    TOTAL_BAD_LOSSES = 16  # bad losses since the start


class Dtype(enum.IntEnum):
    """dtype of a tensor."""

    F32 = 1  # IEEE binary32
    F64 = 2  # IEEE binary64
    F16 = 3  # IEEE binary16
    BF16 = 4  # bfloat16: the upper half of a binary32
    F8_E4M3FN = 5  # OCP FP8 without Inf; up to 448
    F8_E5M2 = 6  # OCP FP8: the upper half of a binary16
    CB16 = 7  # Cerebras' 16 bits: 6 of exponent, 9 of mantissa, bias 42
    COMPLEX64 = 8  # two binary32: real, imaginary
    COMPLEX128 = 9  # two binary64


class MemoryKind(enum.IntEnum):
    """Kinds of memory of a context. On the CPU both are host memory."""

    DEVICE = 0  # memory of the device
    HOST = 1  # host memory that the device can also read and write


class Struct(c.Structure):
    """The base of all structs: repr shows the fields."""

    _takes_ = {}

    def __repr__(self):
        values = {n: getattr(self, n) for n, *_ in self._fields_ if not n.startswith('reserved')}
        for name, takes in self._takes_.items():
            with contextlib.suppress(ValueError):
                values[name] = takes(values[name])
        return f"{type(self).__name__}({', '.join(f'{n}={v!r}' for n, v in values.items())})"


class Policy(Struct):
    """The rules of one scaler. Initialise it, then fill it with gsc_policy_preset.
    """

    _fields_doc_ = """arithmetic: Arithmetic
    init_scale: first scale; 0 is 1; at most max_scale, except with LimitRule.ENFORCE, where the
        first scale is then max_scale
    growth_factor: a growth multiplies by this; at least 1; 0 is 1
    backoff_factor: a backoff multiplies by this, in (0, 1]; 0: divides by growth_factor
    growth_interval: good steps from one growth to the next; 0 never grows
    growth_rule: Growth
    growth_extra_steps: steps that a growth needs beyond the interval
    max_scale: ceiling; 0 is none (infinity)
    min_scale: floor; 0 is none
    ceiling_rule: LimitRule at max_scale
    floor_rule: LimitRule at min_scale; the first scale can be below it: CLAMP raises it at the
        first backoff, ENFORCE at the first update
    overflow_test: OverflowTest
    hysteresis: number of overflows that make a backoff; the overflows before the last are absorbed;
        overflow_reset says what restarts the count; 0 is 1
    overflow_reset: OverflowReset: events that set that count to 0; 0: none, so after the first
        backoff every overflow backs off
    apply_delay: 1: a new scale is in force one update later
    overflow_tolerance: an overflow is absorbed if overflows_since_reset is at most this share of
        steps_since_change; below 1, or 1 with TOLERANCE_EXCLUSIVE
    max_failed_backoffs: Event.STOPPED after this many overflows in a row that could not lower the
        scale, or, with BadLoss.HOLD, after this many bad losses in a row; 0: never
    quirks: Quirk; 0 in any new policy
    bad_loss_rule: BadLoss; HOLD needs max_failed_backoffs above 0
    guard_norm: a norm above this is an outlier; 0: no such threshold
    guard_ratio: a norm above this times a mean above 0 is an outlier; must be above 1; 0: no such
        threshold
    guard_sigmas: a norm this many standard deviations above the mean is an outlier; 0: no such
        threshold
    guard_decay: factor of the old mean and variance at each sample after the warm-up; below 1; 0:
        all samples weigh the same
    guard_init_mean: mean before the first sample, used to judge the first step; 0: none
    guard_warmup: samples before the first step is judged; they enter as they are and weigh the same
    guard_max_in_a_row: at this many outliers in a row, the guard accepts a new level: it lets this
        outlier and later ones in the row through; with Guard.STOP it stops instead; 0: never
    guard_sample: GuardSample
    guard_flags: Guard
    """

    _fields_ = [
        ("struct_size", c.c_uint32),
        ("arithmetic", c.c_uint32),
        ("init_scale", c.c_double),
        ("growth_factor", c.c_double),
        ("backoff_factor", c.c_double),
        ("growth_interval", c.c_uint64),
        ("growth_rule", c.c_uint32),
        ("growth_extra_steps", c.c_uint32),
        ("max_scale", c.c_double),
        ("min_scale", c.c_double),
        ("ceiling_rule", c.c_uint32),
        ("floor_rule", c.c_uint32),
        ("overflow_test", c.c_uint32),
        ("hysteresis", c.c_uint32),
        ("overflow_reset", c.c_uint32),
        ("apply_delay", c.c_uint32),
        ("overflow_tolerance", c.c_double),
        ("max_failed_backoffs", c.c_uint64),
        ("quirks", c.c_uint32),
        ("bad_loss_rule", c.c_uint32),
        ("guard_norm", c.c_double),
        ("guard_ratio", c.c_double),
        ("guard_sigmas", c.c_double),
        ("guard_decay", c.c_double),
        ("guard_init_mean", c.c_double),
        ("guard_warmup", c.c_uint64),
        ("guard_max_in_a_row", c.c_uint64),
        ("guard_sample", c.c_uint32),
        ("guard_flags", c.c_uint32),
    ]
    _takes_ = {"arithmetic": Arithmetic, "growth_rule": Growth, "ceiling_rule": LimitRule, "floor_rule": LimitRule, "overflow_test": OverflowTest, "overflow_reset": OverflowReset, "quirks": Quirk, "bad_loss_rule": BadLoss, "guard_sample": GuardSample, "guard_flags": Guard}


class Info(Struct):
    """The library that runs here. The strings are never freed.

    version: as gsc_version
    cpu: instruction set in use; the environment variable GSC_CPU chooses it
    cpu_available: instruction sets that this machine can run, separated by spaces
    cpu_note: empty, or why GSC_CPU has no effect
    """

    _fields_ = [
        ("struct_size", c.c_uint32),
        ("version", c.c_uint32),
        ("cpu", c.c_char_p),
        ("cpu_available", c.c_char_p),
        ("cpu_note", c.c_char_p),
    ]


class Factor(Struct):
    """A snapshot of a scale. Unscale gradients with the factor that their loss was scaled with. If
    gradients arrive late (pipelines, an optimizer thread, offloading), copy state.factor when
    the loss is scaled, and keep the copy with the gradients.

    scale: the loss is multiplied by this
    inverse: the gradients are multiplied by this: 1 / scale, or less if they are clipped
    scale_f32: scale, rounded; fused optimizers read the floats in place
    inverse_f32: inverse, rounded
    generation: a number that rises at every update, also if the scale stays; 0: from no state
    """

    _fields_ = [
        ("scale", c.c_double),
        ("inverse", c.c_double),
        ("scale_f32", c.c_float),
        ("inverse_f32", c.c_float),
        ("generation", c.c_uint64),
    ]


class Report(Struct):
    """The results of calls on gradients. Calls on tensors, gsc_report_from_number,
    gsc_report_from_flag and gsc_report_merge fill a report in. A report that is all zeros is
    refused: no call filled it in. If a call fails on a rank, make a report of zeros yourself
    and set `status` and `overflow`. Contradictions are also refused, such as NaN elements
    without an overflow.

    found_inf: for fused optimizers that run before the update: not 0 for an overflow, or for a bad
        loss if the policy that the call was given holds; never for an outlier. Merge the reports of
        ranks instead of reducing it
    overflow: 1: an element is Inf or NaN or became so, or options.policy says so, or a device or
        rank failed
    status: Status.OK, or the error of a call
    measured: Want
    generation: generation of the factor; 0: unknown
    amax: largest finite magnitude after unscaling, before rounding; a complex element counts with
        its larger part
    sum_squares: sum of squares of the finite elements after unscaling; its square root is the norm
    elements: number of elements
    nan_count: elements that are NaN
    inf_count: elements that are Inf, or became so by unscaling
    first_tensor: index of the tensor with the first NaN or Inf; 0 if there is none
    first_element: index of that element in the tensor; 0 if there is none
    last_tensor: index of the last tensor with NaN or Inf: in a list in the model's order, the one
        nearest to the cause of an overflow in the backward pass; 0 if there is none
    underflows_to_zero: outputs that are zero although their input was not
    underflows_to_subnormal: outputs that are subnormal although their input was not
    clamped: elements that options.clamp changed
    digest: digest of policy and state, set by gsc_report_set_rank; 0: none
    status_rank_plus_1: 1 + the rank of `status`; 0: unknown
    first_rank_plus_1: 1 + the rank of first_tensor, or, if no element was counted, of the first
        report with an overflow; 0: unknown
    last_rank_plus_1: 1 + the rank of last_tensor, or, if no element was counted, of the last report
        with an overflow; 0: unknown
    loss_rank_plus_1: 1 + the rank of the first bad loss; 0: unknown
    loss: Loss: the loss before it was scaled; UNKNOWN in a FLAG, a NUMBER and a report of zeros
    kind: ReportKind
    flags: 0
    has_flag: 1: a MERGED report with a FLAG among its reports, so 0 elements do not mean that there
        were no gradients; else 0
    number: the number of a ReportKind.NUMBER, which a policy judges as a norm; 0 if it is not
        finite. 0 in other reports
    reserved: 0
    """

    _fields_ = [
        ("found_inf", c.c_float),
        ("overflow", c.c_int32),
        ("status", c.c_int32),
        ("measured", c.c_uint32),
        ("generation", c.c_uint64),
        ("amax", c.c_double),
        ("sum_squares", c.c_double),
        ("elements", c.c_int64),
        ("nan_count", c.c_int64),
        ("inf_count", c.c_int64),
        ("first_tensor", c.c_int64),
        ("first_element", c.c_int64),
        ("last_tensor", c.c_int64),
        ("underflows_to_zero", c.c_int64),
        ("underflows_to_subnormal", c.c_int64),
        ("clamped", c.c_int64),
        ("digest", c.c_uint64),
        ("status_rank_plus_1", c.c_uint32),
        ("first_rank_plus_1", c.c_uint32),
        ("last_rank_plus_1", c.c_uint32),
        ("loss_rank_plus_1", c.c_uint32),
        ("loss", c.c_uint32),
        ("kind", c.c_uint32),
        ("flags", c.c_uint32),
        ("has_flag", c.c_uint32),
        ("number", c.c_double),
        ("reserved", c.c_uint64 * 12),
    ]
    _takes_ = {"status": Status, "measured": Want, "loss": Loss, "kind": ReportKind}


class State(Struct):
    """The state of a scaler. It has no pointers: copy it, store it, send it.

    factor: the scale in force
    next: the newest scale. Without apply_delay it equals `factor`. With apply_delay the next update
        copies it to `factor`; a loss that you scale before that update needs `next`
    good_steps: good steps since the last overflow or growth; a growth that max_scale limited also
        counts; with Growth.EVERY since the last overflow
    steps_since_change: all steps since the scale changed
    overflows_since_reset: overflows not reset yet
    failed_backoffs: overflows in a row that could not lower the scale
    bad_losses_in_a_row: bad losses in a row: a finite loss sets this to 0, and so does a step
        without overflow of an unknown loss
    events: Event of the last update
    status: Status.OK, or the error of the last update
    total_updates: updates since the start
    total_overflows: overflows since the start, without the guard's skips and held bad losses
    total_bad_losses: updates since the start with a bad loss, held or not
    total_growths: updates since the start that made the scale larger
    total_backoffs: updates since the start that made the scale smaller
    skip_f32: 1 with Event.SKIPPED, else 0: found_inf for a fused optimizer that runs after the
        update
    skip: 1 with Event.SKIPPED, else 0: leave the parameters alone
    guard_mean: policies that guard: mean of the samples
    guard_variance: variance of the samples
    guard_count: number of samples
    guard_in_a_row: outliers in a row
    total_guard_skips: steps since the start that were skipped as outliers
    guard_multiplier: multiplier of the last update: 1; below 1 if it clips; 0 with Event.SKIPPED
    guard_threshold: threshold that guard_value was compared with; 0: none
    guard_value: norm or number that the last update judged; 0: none
    total_guard_clips: steps since the start that the guard clipped
    nans_in_a_row: updates in a row with a NaN among the gradients; an overflow without known
        elements does not change it
    empty_in_a_row: updates in a row with Event.EMPTY
    updates_at_growth: total_updates when the scale last grew; before any growth, at the first good
        step; 0: neither yet
    overflows_at_growth: total_overflows at the same update
    reserved: 0
    """

    _fields_ = [
        ("factor", Factor),
        ("next", Factor),
        ("good_steps", c.c_int64),
        ("steps_since_change", c.c_int64),
        ("overflows_since_reset", c.c_int64),
        ("failed_backoffs", c.c_int64),
        ("bad_losses_in_a_row", c.c_int64),
        ("events", c.c_uint32),
        ("status", c.c_int32),
        ("total_updates", c.c_int64),
        ("total_overflows", c.c_int64),
        ("total_bad_losses", c.c_int64),
        ("total_growths", c.c_int64),
        ("total_backoffs", c.c_int64),
        ("skip_f32", c.c_float),
        ("skip", c.c_int32),
        ("guard_mean", c.c_double),
        ("guard_variance", c.c_double),
        ("guard_count", c.c_int64),
        ("guard_in_a_row", c.c_int64),
        ("total_guard_skips", c.c_int64),
        ("guard_multiplier", c.c_double),
        ("guard_threshold", c.c_double),
        ("guard_value", c.c_double),
        ("total_guard_clips", c.c_int64),
        ("nans_in_a_row", c.c_int64),
        ("empty_in_a_row", c.c_int64),
        ("updates_at_growth", c.c_int64),
        ("overflows_at_growth", c.c_int64),
        ("reserved", c.c_uint64 * 15),
    ]
    _takes_ = {"events": Event, "status": Status}

    @classmethod
    def from_bytes(cls, data):
        """Makes a state from bytes(state). Longer bytes of a later version are accepted if the rest is zero."""
        data, size = bytes(data), c.sizeof(cls)
        if len(data) < size:
            raise ValueError(f"a state has {size} bytes, not {len(data)}")
        if any(data[size:]):
            raise ValueError("the bytes of the state set fields that this version does not know")
        state = cls.from_buffer_copy(data)
        try:
            _gradscaler.gsc_state_digest(None, state)
        except _gradscaler.Error as error:
            if error.status == Status.ERROR_VERSION:
                raise
        return state

    def __setstate__(self, attributes, data):
        super().__setstate__(attributes, bytes(self.from_bytes(data)))


class Evidence(Struct):
    """The facts that a caller knows about a step beside its report. 0 is unknown.

    bad_parameters: tensors of the list with NaN or Inf in their parameter
    parameter_plus_1: 1 + index of the first of them
    scale: by which the losses of the step were multiplied
    loss_dtype: dtype of the losses before they were scaled, Dtype.F32 ...
    losses: losses of this rank that were scaled in the step, if it is known which of them were
        finite
    bad_loss: number, from 1, of the first of them that was not finite before it was scaled; 0: all
        were finite, or `losses` is 0
    ranks: ranks that share the gradients
    reserved: 0
    """

    _fields_ = [
        ("bad_parameters", c.c_int64),
        ("parameter_plus_1", c.c_int64),
        ("scale", c.c_double),
        ("loss_dtype", c.c_uint32),
        ("losses", c.c_uint32),
        ("bad_loss", c.c_uint32),
        ("ranks", c.c_uint32),
        ("reserved", c.c_uint64 * 3),
    ]


class Reason(Struct):
    """Why the last update took, clipped or skipped its step.

    outcome: Outcome
    cause: Cause
    value: with OUTLIER, the norm or number that was judged; 0: unknown
    threshold: with OUTLIER, the threshold that `value` is above
    multiplier: 1; below 1 if clipped, 0 if skipped
    in_a_row: outliers in a row with OUTLIER, bad losses in a row with BAD_LOSS
    nan_count: elements that are NaN; 0 also if unknown
    inf_count: elements that are Inf; 0 also if unknown
    bad_tensors: tensors with NaN or Inf; 0: none, or unknown
    tensor: with PARAMETER, index of the first bad parameter; else index of the bad tensor that is
        nearest to the cause, the first in `order` or else the last of the list; -1: none, or
        unknown
    tensor_before: index of the tensor before that one in `order`, which is finite; -1: none, or
        unknown
    rank: rank of the bad tensor or, with BAD_LOSS, of the first bad loss; without both, rank of the
        last report with an overflow; -1: unknown
    message: a sentence for a log, such as "skipped: 3 NaN in \"h.3.attn.weight\" alone"; empty if
        the step is taken as it is
    reserved: 0
    """

    _fields_ = [
        ("outcome", c.c_uint32),
        ("cause", c.c_uint32),
        ("value", c.c_double),
        ("threshold", c.c_double),
        ("multiplier", c.c_double),
        ("in_a_row", c.c_int64),
        ("nan_count", c.c_int64),
        ("inf_count", c.c_int64),
        ("bad_tensors", c.c_int64),
        ("tensor", c.c_int64),
        ("tensor_before", c.c_int64),
        ("rank", c.c_int64),
        ("message", c.c_char * 512),
        ("reserved", c.c_uint64 * 5),
    ]
    _takes_ = {"outcome": Outcome, "cause": Cause}


class Entry(Struct):
    """A key of a checkpoint or a configuration, and its value.

    key: ends with a zero; nested keys are joined by dots, as in "grad_scaler.scale"
    kind: EntryKind
    flags: 0
    value: the number
    integer: the number of an INTEGER or a BOOLEAN, exactly; if `value` is above 0, as uint64_t
    text: the text, such as "dynamic"; ends with a zero
    reserved: 0
    """

    _fields_ = [
        ("key", c.c_char * 160),
        ("kind", c.c_uint32),
        ("flags", c.c_uint32),
        ("value", c.c_double),
        ("integer", c.c_int64),
        ("text", c.c_char * 56),
        ("reserved", c.c_uint64 * 2),
    ]
    _takes_ = {"kind": EntryKind}


class Note(Struct):
    """A message from a call that succeeded. Its text is like the text of a gsc_error: programs
    read the other fields. Notes on entries come in this order: UNUSABLE, OUTSIDE_LIMITS,
    CHANGED, LOST, FORMAT, IGNORED, MISSING.

    kind: NoteKind
    flags: 0
    entry: index in the call's list, entries or per_tensor, or of a tensor of the report, from 0;
        -1: none
    value: the number in force from now on, or as `kind` says
    field: field of the policy or the state, or empty; with FORMAT the name of the format
    value_start: byte of `message` at which `value` stands by its name, such as "CLAMP" or
        "CLIP|INCLUSIVE", or as a number: bindings can write their own name there. Set in MISSING
        and LOST, and in CHANGED if the field is a rule
    value_length: bytes of that name; 0: none is marked, as in other notes
    message: a sentence, such as "growth_interval is not among the entries: it is 1000, as in the
        policy"
    reserved: 0
    """

    _fields_ = [
        ("kind", c.c_uint32),
        ("flags", c.c_uint32),
        ("entry", c.c_int64),
        ("value", c.c_double),
        ("field", c.c_char * 32),
        ("value_start", c.c_uint32),
        ("value_length", c.c_uint32),
        ("message", c.c_char * 432),
        ("reserved", c.c_uint64 * 2),
    ]
    _takes_ = {"kind": NoteKind}


class FormatKey(Struct):
    """A key that a format reads.

    key: without a prefix; ends with a zero
    field: field that it sets or decides, by the key that the format "gradscaler" has for it: a
        field of the policy, `scale`, or a count of the state
    uses: KeyUse
    flags: 0
    reserved: 0
    """

    _fields_ = [
        ("key", c.c_char * 64),
        ("field", c.c_char * 32),
        ("uses", c.c_uint32),
        ("flags", c.c_uint32),
        ("reserved", c.c_uint64 * 1),
    ]
    _takes_ = {"uses": KeyUse}
