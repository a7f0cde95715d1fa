"""The structs and constants of the library.

Generated from include/gradscaler.toml by bindings/python/generate.py. Do not edit.
"""

import contextlib
import ctypes as c
import enum


class Status(enum.IntEnum):
    """What a call returns."""

    OK = 0  # done
    ERROR_NULL = -1  # a pointer is None that may not be
    ERROR_STRUCT_SIZE = -2  # struct_size is not set, or a field is set that this version lacks
    ERROR_PRESET = -3  # no preset has this name
    ERROR_POLICY = -4  # a field of the policy is out of range
    ERROR_STATE = -5  # no update leads to this state
    ERROR_REPORT = -6  # the report failed, or lacks what the policy judges by
    ERROR_FACTOR = -7  # a factor is zero, infinite or not a number
    ERROR_VALUE = -8  # a number is out of range
    ERROR_DTYPE = -9  # unknown dtype
    ERROR_COUNT = -10  # counts differ, or are too large
    ERROR_OVERLAP = -11  # an output overlaps its input without being the same, or another entry
    ERROR_CAPACITY = -12  # the buffer is too small
    ERROR_CORRUPT = -13  # saved bytes are truncated, damaged or something else
    ERROR_VERSION = -14  # saved bytes need a newer version of the library
    ERROR_UNAVAILABLE = -15  # this build or machine cannot do it
    ERROR_MEMORY = -16  # out of memory or threads
    ERROR_DEVICE = -17  # the driver failed, or the context is of another process
    ERROR_FORMAT = -18  # the entries are of no format, or of several, or no format has this name
    ERROR_MISMATCH = -19  # the reports are of ranks whose policies or states differ


class Feature(enum.IntEnum):
    """What a build of the library may lack."""

    CUDA = 1  # contexts on CUDA devices, see gradscaler_cuda.h


class Growth(enum.IntEnum):
    """growth_rule: when the scale grows. The count is `good_steps` less growth_extra_steps."""

    REACHED = 0  # at the interval or past it
    EXACT = 1  # at the interval only; a count already past it waits for an overflow
    EVERY = 2  # at each multiple of it; a growth does not restart the count
    ALL_STEPS = 3  # as REACHED, but counting `steps_since_change`, overflows included


class LimitRule(enum.IntEnum):
    """ceiling_rule, floor_rule: what a change does that would reach the limit."""

    CLAMP = 0  # ends at the limit
    ENFORCE = 1  # as CLAMP, and every update enforces the limit
    REJECT = 2  # is dropped
    STOP = 3  # is dropped, with Event.STOPPED
    CLAMP_UNLESS_PAST = 4  # as CLAMP, except that a scale already past the limit stays where it is


class OverflowReset(enum.IntFlag):
    """overflow_reset, bits: what sets the count of overflows to 0."""

    ON_GROWTH = 1  # a growth
    ON_GOOD_STEP = 2  # a step without overflow
    ON_BACKOFF = 4  # a backoff

    __str__ = enum.Flag.__str__  # names, where IntFlag has a number


class Arithmetic(enum.IntEnum):
    """arithmetic: the number format in which a new scale is computed."""

    F64 = 0  # double
    F64_TO_F32 = 1  # double product, rounded once to float
    F32 = 2  # factors rounded to float first, then a float operation
    F32_FLUSH = 3  # as F32; a result below 2^-126 becomes 0


class OverflowTest(enum.IntEnum):
    """overflow_test: what of a report is an overflow."""

    ELEMENT = 0  # an element that is not finite
    NORM = 1  # that, or a sum of squares above the largest float


class Quirk(enum.IntFlag):
    """quirks, bits: what a peer does and no new policy should."""

    TOLERANCE_EXCLUSIVE = 1  # a share equal to overflow_tolerance is not tolerated
    OVERFLOW_IS_GOOD = 2  # an overflow also counts as a good step
    ALLOW_LOCKOUT = 4  # the guard may skip all steps for good: gsc_policy_check asks for no guard_max_in_a_row

    __str__ = enum.Flag.__str__  # names, where IntFlag has a number


class GuardSample(enum.IntEnum):
    """guard_sample: what an outlier adds to the mean and the variance that later steps are judged
    by."""

    AS_IS = 0  # itself
    NONE = 1  # nothing
    THRESHOLD = 2  # the threshold, or what the outlier was clipped to


class Guard(enum.IntFlag):
    """guard_flags, bits: what becomes of an outlier."""

    CLIP = 1  # its gradients are multiplied by threshold / norm, and the step is taken, unless the threshold is not above 0; without it the step is skipped
    INCLUSIVE = 2  # a norm equal to the threshold is also an outlier
    STOP = 4  # at guard_max_in_a_row Event.STOPPED; without it this outlier and those that follow it in the row are let through, and enter the mean as they are
    SKIP_IS_GOOD = 8  # a step that is skipped as an outlier counts as a good step of the scale; without it the scale and its counts stay
    CLIP_PROGRESSIVE = 16  # with CLIP: to mean + (threshold - mean)^2 / (norm - mean), the further out the lower
    VARIANCE_AFTER_MEAN = 32  # after the warm-up the variance takes (sample - mean)^2 with the mean that already has the sample
    BIAS_CORRECTED = 64  # a sample's weight is (1 - guard_decay) / (1 - guard_decay^n), n its number, from the first one on
    CLIP_TO_MEAN = 128  # with CLIP: to the mean

    __str__ = enum.Flag.__str__  # names, where IntFlag has a number


class Trait(enum.IntFlag):
    """What a policy does, for callers that prepare for it."""

    MOVES = 1  # its scale can change
    GUARDS = 2  # it judges the norm of finite gradients
    NEEDS_NORM = 4  # its updates need sum_squares, or a number
    NEEDS_AMAX = 8  # its updates need amax

    __str__ = enum.Flag.__str__  # names, where IntFlag has a number


class Want(enum.IntFlag):
    """What a report can measure beside overflow, its place and its counts, which are always there."""

    NORM = 1  # sum_squares
    AMAX = 2  # amax
    UNDERFLOW = 4  # underflows_to_zero, underflows_to_subnormal

    __str__ = enum.Flag.__str__  # names, where IntFlag has a number


class ReportKind(enum.IntEnum):
    """report.kind: what a report is of."""

    NONE = 0  # nothing, it was not filled in; refused unless it says an overflow
    TENSORS = 1  # the tensors of a call
    NUMBER = 2  # a number
    MERGED = 3  # other reports
    FLAG = 4  # a flag: whether there was an overflow, and nothing else


class MergeKind(enum.IntEnum):
    """What the merged reports are of."""

    SHARDS = 0  # different gradients: shards, layers, optimizers. Their sums of squares add up
    ADDENDS = 1  # gradients that are added: micro-batches, data-parallel ranks. The norm of their sum is not known


class Event(enum.IntFlag):
    """Bits of state.events: what the last update did."""

    GREW = 1  # the scale became larger
    BACKED_OFF = 2  # the scale became smaller
    SKIPPED = 4  # an overflow, an outlier, or a failure on a device: leave the parameters alone
    ABSORBED = 8  # the overflow was absorbed by hysteresis or tolerance
    AT_CEILING = 16  # max_scale held a growth
    AT_FLOOR = 32  # min_scale held a backoff
    BACKOFF_FAILED = 64  # the overflow could not lower the scale
    STOPPED = 128  # the policy gives up: training on would only skip
    STALE = 256  # the report is of another factor than the one in force: late, or used before
    OUTLIER = 512  # the norm is above guard_threshold; neither SKIPPED nor CLIPPED: it was let through
    CLIPPED = 1024  # multiply the gradients by guard_multiplier, as gsc_factor_clip_outlier does

    __str__ = enum.Flag.__str__  # names, where IntFlag has a number


class Outcome(enum.IntEnum):
    """reason.outcome: what the last update decided of its step."""

    TAKEN = 0  # take it; the gradients are as they are
    LET_THROUGH = 1  # take it, although it is an outlier
    CLIPPED = 2  # take it with gradients times `multiplier`
    SKIPPED = 3  # leave the parameters alone
    STOPPED = 4  # end the training


class Cause(enum.IntEnum):
    """reason.cause: why it decided so."""

    NONE = 0  # nothing was wrong
    OVERFLOW = 1  # Inf or NaN
    OUTLIER = 2  # `value` is above `threshold`
    CEILING = 3  # the scale would pass max_scale, where ceiling_rule stops
    OTHER_STATE = 4  # a state that it was combined with found an outlier
    FAILURE = 5  # the update failed on a device; state.status says how


class EntryKind(enum.IntEnum):
    """entry.kind: what is at the key. All numbers are read alike; gsc_state_export says which ones
    a loader expects."""

    UNUSED = 0  # no entry: it is passed over
    NUMBER = 1  # `value`, any number
    TEXT = 2  # `text`
    NULL = 3  # null, None, nil: switched off
    INTEGER = 4  # `integer`, and in `value` the same number, rounded
    BOOLEAN = 5  # 0 or 1, in `integer` and in `value`


class NoteKind(enum.IntEnum):
    """note.kind: what a call has to tell."""

    FORMAT = 1  # the entries were recognised: `field` is the name of the format
    MISSING = 2  # the entries do not say `field`: `value` is that of the policy, or where a count starts
    IGNORED = 3  # the key of `entry` means nothing in this format
    CHANGED = 4  # `field` became `value`, which is what `entry` means to this policy
    UNUSABLE = 5  # the scale is 0 or infinity: no call multiplies by it; also of gsc_state_diagnose, with `value` the scale
    LOST = 6  # the format has no key for `field`, which is `value`
    FAILURE = 7  # diagnosis: a call failed on a device or on a rank, and nobody steps; `value` is its status
    NOT_FINITE = 8  # diagnosis: Inf or NaN that no scale cures; `value` is their number, 0 if not known, `entry` the first tensor that has some
    BACKOFF_FAILED = 9  # diagnosis: overflows cannot lower the scale, which is `value`; `entry` as above
    OVERFLOWS_OFTEN = 10  # diagnosis: more steps overflowed than this policy causes by itself; `value` is their share, 0 to 1
    GUARD_SKIPS = 11  # diagnosis: the guard skipped more than half of the steps, or the last ones in a row; `value` is how many since the start
    GUARD_IDLE = 12  # diagnosis: the guard judges no step of the planned ones: its warm-up is longer; `value` is its samples so far
    UNDERFLOWS = 13  # diagnosis: gradients became zero; `value` is their share, 0 to 1, `entry` the tensor with the largest share
    NEVER_GROWS = 14  # diagnosis: `value` steps are planned, fewer than a growth needs
    CEILING_UNREACHABLE = 15  # diagnosis: the planned steps end before the scale can reach max_scale; `value` is the highest that it can reach


class Metric(enum.IntEnum):
    """What gsc_state_metrics gives, in this order, with these names in lower case as keys. Later
    versions add some at the end."""

    LOSS_SCALE = 0  # the scale in force, state.factor.scale
    SKIP = 1  # 1 if the last update skipped its step, else 0
    OVERFLOW = 2  # 1 if the last update skipped its step because of an overflow, else 0
    NORM = 3  # norm of all gradients after unscaling, or the number that the policy judged; None if it is not known or some are not finite
    AMAX = 4  # largest magnitude after unscaling, if the report has it; None if some are not finite
    ZERO_SHARE = 5  # share of the gradients that became zero by unscaling, 0 to 1, if the report has it
    TOTAL_OVERFLOWS = 6  # overflows since the start
    TOTAL_GUARD_SKIPS = 7  # steps since the start that were skipped as outliers
    TOTAL_GROWTHS = 8  # growths since the start
    TOTAL_BACKOFFS = 9  # backoffs since the start
    STEPS_SINCE_CHANGE = 10  # steps since the scale changed
    NAN_COUNT = 11  # elements that are NaN, if there is a report
    INF_COUNT = 12  # elements that are Inf, if there is a report
    GUARD_THRESHOLD = 13  # threshold that the guard compared the norm with; None if it compared none
    GUARD_MULTIPLIER = 14  # what the gradients are multiplied by: 1, less if clipped, 0 if skipped


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
    HOST = 1  # host memory that the device reads and writes, too


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

    struct_size: set by the initialiser
    arithmetic: Arithmetic
    init_scale: first scale; 0 is 1
    growth_factor: a growth multiplies by it; at least 1, 0 is 1
    backoff_factor: a backoff multiplies by it; in (0, 1]. 0: divides by growth_factor
    growth_interval: good steps from one growth to the next; 0 never grows
    growth_rule: Growth
    growth_extra_steps: steps a count needs beyond the interval
    max_scale: ceiling; 0 is none (infinity)
    min_scale: floor; 0 is none
    ceiling_rule: LimitRule at max_scale; with ENFORCE also for the first scale
    floor_rule: LimitRule at min_scale; the first scale is never raised
    overflow_test: OverflowTest
    hysteresis: number of overflows that make a backoff; those before the last are absorbed;
        overflow_reset restarts the count; 0 is 1
    overflow_reset: OverflowReset: what refills the hysteresis
    apply_delay: 1: a new scale is in force one update later
    overflow_tolerance: an overflow is absorbed while overflows are at most this share of the steps
        since the last change; overflow_reset restarts their count; below 1, or 1 with
        TOLERANCE_EXCLUSIVE
    max_failed_backoffs: Event.STOPPED at this many overflows in a row that could not lower the
        scale; 0 never
    quirks: Quirk; 0 in any new policy
    reserved: 0
    target_amax: not 0: the scale is predicted so that amax lands here, and nothing is counted
    log2_decay: decay of the running mean of log2(amax); 0 up to, not including, 1
    log2_slow_decay: decay of its slower mean and of its square; likewise
    log2_margin_sigmas: standard deviations kept free above the mean
    overflow_sample_log2: the sample of log2(amax) that an overflow stands for
    guard_norm: an outlier has a norm above this; 0: no such threshold
    guard_ratio: or above this times the mean, where that is above 0; above 1, or 0
    guard_sigmas: or this many standard deviations above the mean; 0: no such threshold
    guard_decay: what is left of the mean and the variance at each sample after the warm-up; below
        1. 0: all samples weigh the same
    guard_init_mean: the mean before the first sample, by which the first step is judged; 0: none
    guard_warmup: samples before the first step is judged, which enter as they are and weigh the
        same
    guard_max_in_a_row: at this many outliers in a row the guard accepts a new level: it lets this
        outlier and those that follow it in the row through, or with Guard.STOP it stops; 0: never
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
        ("reserved", c.c_uint32),
        ("target_amax", c.c_double),
        ("log2_decay", c.c_double),
        ("log2_slow_decay", c.c_double),
        ("log2_margin_sigmas", c.c_double),
        ("overflow_sample_log2", c.c_double),
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
    _takes_ = {"arithmetic": Arithmetic, "growth_rule": Growth, "ceiling_rule": LimitRule, "floor_rule": LimitRule, "overflow_test": OverflowTest, "overflow_reset": OverflowReset, "quirks": Quirk, "guard_sample": GuardSample, "guard_flags": Guard}


class Info(Struct):
    """What runs here. The strings are never freed.

    struct_size: set by the initialiser
    version: as gsc_version
    cpu: instruction set in use; GSC_CPU in the environment chooses
    cpu_available: those that this machine can run, separated by spaces
    cpu_note: empty, or why GSC_CPU was not followed
    """

    _fields_ = [
        ("struct_size", c.c_uint32),
        ("version", c.c_uint32),
        ("cpu", c.c_char_p),
        ("cpu_available", c.c_char_p),
        ("cpu_note", c.c_char_p),
    ]


class Factor(Struct):
    """A snapshot of a scale. Unscale gradients by the factor that their loss was scaled by: where
    they arrive late (pipelines, an optimizer thread, offloading), copy state.factor when the
    loss is scaled and keep it with them.

    scale: the loss is multiplied by this
    inverse: the gradients are multiplied by this: 1 / scale, or less where they are clipped
    scale_f32: scale, rounded; fused optimizers read the floats in place
    inverse_f32: inverse, rounded
    generation: tells the scales of a state apart, a later one has a larger number; 0: of no state
    """

    _fields_ = [
        ("scale", c.c_double),
        ("inverse", c.c_double),
        ("scale_f32", c.c_float),
        ("inverse_f32", c.c_float),
        ("generation", c.c_uint64),
    ]


class Report(Struct):
    """Calls on tensors, gsc_report_from_number, gsc_report_from_flag and gsc_report_merge fill a
    report in. A report of zeros is refused, as nobody filled it in. Zeros with `status` and
    `overflow` set are the report of a rank whose call failed. Also refused: values that
    contradict each other, such as elements that are NaN without an overflow.

    found_inf: `overflow` as the float that fused optimizers read; not 0 is an overflow by itself
    overflow: 1: do not step. An element is Inf or NaN or became so, or options.policy says so, or
        the call failed
    status: Status.OK, or the error that a device or a rank met
    measured: Want
    generation: of the factor; 0: unknown
    amax: largest finite magnitude after unscaling, before rounding; of a complex element its larger
        part
    sum_squares: of the finite elements after unscaling; its root is the norm
    elements: elements seen
    nan_count: elements that are NaN
    inf_count: elements that are Inf, or became so by unscaling
    first_tensor: where the first of these is: index in the list ...
    first_element: ... and in the tensor; both 0 if both counts are
    underflows_to_zero: outputs that are zero while their input was not
    underflows_to_subnormal: outputs that are subnormal while their input was not
    clamped: elements that options.clamp changed
    digest: what gsc_report_set_rank left: a digest of policy and state; 0: none
    status_rank_plus_1: 1 + the rank that status is of; 0: not known
    first_rank_plus_1: 1 + the rank that first_tensor is of, or, where nothing was counted, of the
        first with overflow; 0: not known
    kind: ReportKind
    flags: 0
    number: with ReportKind.NUMBER the number, which a policy judges as it judges a norm; 0 if it is
        not finite. Else 0
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
        ("underflows_to_zero", c.c_int64),
        ("underflows_to_subnormal", c.c_int64),
        ("clamped", c.c_int64),
        ("digest", c.c_uint64),
        ("status_rank_plus_1", c.c_uint32),
        ("first_rank_plus_1", c.c_uint32),
        ("kind", c.c_uint32),
        ("flags", c.c_uint32),
        ("number", c.c_double),
        ("reserved", c.c_uint64 * 15),
    ]
    _takes_ = {"status": Status, "measured": Want, "kind": ReportKind}


class State(Struct):
    """One scaler. A value without pointers: copy it, store it, send it.

    factor: the scale in force
    next: the newest scale. It differs from `factor` only with apply_delay: then the next loss is
        scaled by it while the update for this one is under way
    log2_mean: predictive policies: running mean of log2(amax)
    log2_slow_mean: slower mean of log2(amax), with log2_slow_decay
    log2_mean_square: slower mean of its square
    log2_zero_weight: weight in log2_mean of the zero that it began with
    log2_slow_zero_weight: the same of log2_slow_mean
    good_steps: good steps since the last overflow or growth; with Growth.EVERY since the last
        overflow
    steps_since_change: all steps since the last change
    overflows_since_reset: overflows not reset yet
    failed_backoffs: overflows in a row that could not lower the scale
    events: Event of the last update
    status: Status.OK, or the error of the last update on a device
    total_overflows: overflows since the start; what the guard skipped is in total_guard_skips
    total_growths: updates since the start that made the scale larger
    total_backoffs: updates since the start that made it smaller
    skip_f32: 1 with Event.SKIPPED, else 0: what a fused optimizer that runs after the update takes
        as found_inf
    skip: 1 with Event.SKIPPED, else 0: leave the parameters alone
    guard_mean: policies that guard: mean of the samples
    guard_variance: their variance
    guard_count: their number
    guard_in_a_row: outliers in a row
    total_guard_skips: steps since the start that were skipped as outliers
    guard_multiplier: of the last update: 1, below 1 where it clips, 0 with Event.SKIPPED
    guard_threshold: what guard_value was held against; 0: against nothing
    guard_value: the norm or the number that the last update judged; 0: none
    reserved: 0
    """

    _fields_ = [
        ("factor", Factor),
        ("next", Factor),
        ("log2_mean", c.c_double),
        ("log2_slow_mean", c.c_double),
        ("log2_mean_square", c.c_double),
        ("log2_zero_weight", c.c_double),
        ("log2_slow_zero_weight", c.c_double),
        ("good_steps", c.c_int64),
        ("steps_since_change", c.c_int64),
        ("overflows_since_reset", c.c_int64),
        ("failed_backoffs", c.c_int64),
        ("events", c.c_uint32),
        ("status", c.c_int32),
        ("total_overflows", c.c_int64),
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
        ("reserved", c.c_uint64 * 18),
    ]
    _takes_ = {"events": Event, "status": Status}

    @classmethod
    def from_bytes(cls, data):
        """Makes a state from bytes(state), also of 0.2 to 0.5, where a state had 256 bytes and no `skip`.

        Longer bytes of a later version are accepted if the rest is zero.
        """
        data, size = bytes(data), c.sizeof(cls)
        if len(data) != 256 and len(data) < size:
            raise ValueError(f"a state has {size} bytes, not {len(data)}")
        if any(data[size:]):
            raise ValueError("the bytes of the state set fields that this version does not know")
        state = cls.from_buffer_copy(data.ljust(size, b"\0"))
        if len(data) == 256:
            state.skip = bool(state.events & Event.SKIPPED)
        return state

    def __setstate__(self, attributes, data):
        super().__setstate__(attributes, bytes(self.from_bytes(data)))


class Reason(Struct):
    """Why the last update took, clipped or skipped its step.

    outcome: Outcome
    cause: Cause
    value: with OUTLIER the norm or the number that was judged; 0: not known
    threshold: with OUTLIER what it is above
    multiplier: what the gradients are to be multiplied by
    in_a_row: with OUTLIER, how many in a row there were
    message: a sentence for a log, such as "skipped: the norm, 3, is above 2, 1 in a row"; empty if
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
        ("message", c.c_char * 192),
        ("reserved", c.c_uint64 * 3),
    ]
    _takes_ = {"outcome": Outcome, "cause": Cause}


class Entry(Struct):
    """A key of a checkpoint or a configuration, and what is there.

    key: ends with a zero; nested keys are joined by dots, as in "grad_scaler.scale"
    kind: EntryKind
    flags: 0
    value: the number
    integer: the number of an INTEGER or a BOOLEAN, exactly
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
    """Something that the caller may want to know of a call that succeeded.

    kind: NoteKind
    flags: 0
    entry: index in the list that the call was given, entries or per_tensor, from 0; -1: none
    value: the number that counts from now on, or what `kind` says
    field: field of the policy or the state, or empty; with FORMAT the name of the format
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
        ("message", c.c_char * 312),
        ("reserved", c.c_uint64 * 2),
    ]
    _takes_ = {"kind": NoteKind}
