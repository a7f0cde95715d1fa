"""The structs and constants of the library.

Generated from bindings/abi.toml by bindings/generate.py. Do not edit.
"""

import ctypes as c
import enum


class Struct(c.Structure):
    """A struct whose repr tells its fields."""

    def __repr__(self):
        names = [name for name, *_ in self._fields_ if "reserved" not in name]
        return f"{type(self).__name__}({', '.join(f'{n}={getattr(self, n)!r}' for n in names)})"


class Growth(enum.IntEnum):
    """growth_rule: when `good`, less growth_lag, makes a growth due."""

    REACHED = 0  # at the interval or past it
    EXACT = 1  # at the interval only; a count already past it waits for an overflow
    EVERY = 2  # at each multiple; the count runs on over a growth
    STEPS = 3  # as REACHED, but counting `steps`, overflows included


class Limit(enum.IntEnum):
    """ceiling_rule, floor_rule: what a change does that would reach the limit."""

    CLAMP = 0  # ends at the limit
    ALWAYS = 1  # as CLAMP, and every update enforces the limit
    KEEP = 2  # is dropped
    STOP = 3  # is dropped, with Event.STOPPED


class Reset(enum.IntFlag):
    """overflow_reset, bits: what sets the count of overflows to 0."""

    ON_GROWTH = 1  # a growth
    ON_GOOD_STEP = 2  # a step without overflow
    ON_BACKOFF = 4  # a backoff


class Arithmetic(enum.IntEnum):
    """arithmetic: the number format in which a new scale is computed."""

    F64 = 0  # double
    F32_ONCE = 1  # double product, rounded once to float
    F32 = 2  # factors rounded to float first, then a float operation
    F32_FLUSH = 3  # as F32; a result below 2^-126 becomes 0


class Overflow(enum.IntEnum):
    """overflow_test: what of a report is an overflow."""

    ELEMENT = 0  # an element that is not finite
    NORM = 1  # that, or a sum of squares above the largest float; needs Want.NORM


class Quirk(enum.IntFlag):
    """quirks, bits: what a peer does and no new policy should."""

    TOLERATE_BELOW = 1  # a share equal to overflow_tolerance is not tolerated
    OVERFLOW_COUNTS = 2  # an overflow counts once more, as a good step


class Policy(Struct):
    """The rules of one scaler. Initialise it, then fill it with gsc_policy_preset.

    struct_size: set by the initialiser
    arithmetic: Arithmetic
    init_scale: first scale; 0 is 1
    growth_factor: a growth multiplies by it; at least 1, 0 is 1
    backoff_factor: a backoff multiplies by it; in (0, 1]. 0: divides by growth_factor
    growth_interval: good steps from one growth to the next; 0 never grows
    growth_rule: Growth
    growth_lag: steps a count needs beyond the interval
    max_scale: ceiling; 0 is none (infinity)
    min_scale: floor; 0 is none
    ceiling_rule: Limit at max_scale; ALWAYS holds for the start, too
    floor_rule: Limit at min_scale; the start itself is never raised
    overflow_test: Overflow
    hysteresis: overflows, counted until overflow_reset, that make a backoff; the ones before are
        absorbed; 0 is 1
    overflow_reset: Reset bits: what refills the hysteresis
    apply_delay: 1: a new scale is in force one update later
    overflow_tolerance: overflows, counted until overflow_reset, up to this share of the steps since
        the last change are absorbed; 0 to 1
    stall_limit: Event.STOPPED at this many overflows in a row that could not lower the scale; 0
        never
    quirks: Quirk bits; 0 in any new policy
    reserved: 0
    target_amax: not 0: the scale is predicted so that amax lands here, and nothing is counted;
        needs Want.AMAX
    mean_decay: decay of the running mean of log2(amax); 0 up to, not including, 1
    variance_decay: decay of its slower mean and of its square; likewise
    margin_sigmas: standard deviations kept free above the mean
    overflow_log2: the sample of log2(amax) that an overflow stands for
    """

    _fields_ = [
        ("struct_size", c.c_uint32),
        ("arithmetic", c.c_uint32),
        ("init_scale", c.c_double),
        ("growth_factor", c.c_double),
        ("backoff_factor", c.c_double),
        ("growth_interval", c.c_uint64),
        ("growth_rule", c.c_uint32),
        ("growth_lag", c.c_uint32),
        ("max_scale", c.c_double),
        ("min_scale", c.c_double),
        ("ceiling_rule", c.c_uint32),
        ("floor_rule", c.c_uint32),
        ("overflow_test", c.c_uint32),
        ("hysteresis", c.c_uint32),
        ("overflow_reset", c.c_uint32),
        ("apply_delay", c.c_uint32),
        ("overflow_tolerance", c.c_double),
        ("stall_limit", c.c_uint64),
        ("quirks", c.c_uint32),
        ("reserved", c.c_uint32),
        ("target_amax", c.c_double),
        ("mean_decay", c.c_double),
        ("variance_decay", c.c_double),
        ("margin_sigmas", c.c_double),
        ("overflow_log2", c.c_double),
    ]


class Info(Struct):
    """What runs here. The strings belong to the library and are never freed.

    struct_size: set by the initialiser
    version: as gsc_version
    cpu: instruction set in use: "scalar", "avx2", "avx512" or "neon"; GSC_CPU in the environment
        chooses
    cpu_available: those that this machine can run, separated by spaces
    cpu_note: empty, or why GSC_CPU was not followed
    cuda: "available", or why there is no CUDA, or which device refused the kernels first; finding
        out starts the driver, which a process forked later cannot use
    """

    _fields_ = [
        ("struct_size", c.c_uint32),
        ("version", c.c_uint32),
        ("cpu", c.c_char_p),
        ("cpu_available", c.c_char_p),
        ("cpu_note", c.c_char_p),
        ("cuda", c.c_char_p),
    ]


class Factor(Struct):
    """A snapshot of a scale. Copy it freely, to device memory too; fused optimizers read the float
    members in place, of a state before its update, which overwrites them.

    scale: the loss is multiplied by this
    inverse: the gradients are multiplied by this
    scale_f32: scale, rounded
    inverse_f32: inverse, rounded
    serial: updates and gsc_set_scale calls that led to it
    """

    _fields_ = [
        ("scale", c.c_double),
        ("inverse", c.c_double),
        ("scale_f32", c.c_float),
        ("inverse_f32", c.c_float),
        ("serial", c.c_uint64),
    ]


class Want(enum.IntFlag):
    """Bits: what a report is to hold beside found_inf. What is not wanted costs nothing."""

    COUNTS = 1  # nan_count, inf_count
    FIRST_BAD = 2  # first_bad
    NORM = 4  # sum_squares
    AMAX = 8  # amax
    UNDERFLOW = 16  # zeros_made, subnormals_made
    HISTOGRAM = 32  # histogram, of a sample: the first 4,096 of every 65,536 elements of a tensor, of complex ones half as many


class Report(Struct):
    """Overwritten by the call that fills it. All zeros is the report of an empty list, and adds
    nothing in a merge. The members stand in groups of 64-bit words that one collective each can
    reduce over ranks that hold different gradients and want the same: words 0-3 as int64 MAX,
    4-7 as int64 MIN, 8-9 as double SUM, 10-31 as int64 SUM. gsc_merge does the same for two
    reports. A rank whose call failed contributes zeros, the error in `status`, and overflow and
    found_inf of 1, which is also what a device writes: nothing was unscaled, so nobody is to
    step. The update is then refused everywhere.

    found_inf: 1 if an element is Inf or NaN, or became so by unscaling, or the call failed; else 0
    overflow: the same as an integer
    amax: largest finite magnitude after unscaling, before rounding to the output's dtype; of a
        complex value its larger part
    absent: Want bits that were not asked for
    max_reserved: 0
    first_bad: 0: none, else GSC_BAD_TENSOR and GSC_BAD_ELEMENT of it say where
    status: GSC_OK, or the Error of a device or rank that failed
    min_reserved: 0
    sum_squares: of the finite elements after unscaling; its root is the global norm
    sum_reserved: 0
    elements: elements seen
    nan_count: elements that are NaN
    inf_count: elements that are Inf, or became so by unscaling
    zeros_made: outputs that are zero while their input was not
    subnormals_made: outputs that are subnormal while their input was not
    histogram_elements: elements that the histogram looked at
    histogram: of them by magnitude after unscaling: [k] those from 2^(4k-48) up to 2^(4k-44); [0]
        all smaller ones but zeros, [15] all finite larger ones
    """

    _fields_ = [
        ("found_inf", c.c_float),
        ("overflow", c.c_int32),
        ("amax", c.c_double),
        ("absent", c.c_uint32),
        ("max_reserved", c.c_uint32 * 3),
        ("first_bad", c.c_int64),
        ("status", c.c_int64),
        ("min_reserved", c.c_int64 * 2),
        ("sum_squares", c.c_double),
        ("sum_reserved", c.c_double),
        ("elements", c.c_int64),
        ("nan_count", c.c_int64),
        ("inf_count", c.c_int64),
        ("zeros_made", c.c_int64),
        ("subnormals_made", c.c_int64),
        ("histogram_elements", c.c_int64),
        ("histogram", c.c_int64 * 16),
    ]


class Event(enum.IntFlag):
    """Bits of state.events: what the last update did."""

    GREW = 1  # the scale became larger
    BACKED_OFF = 2  # the scale became smaller
    SKIPPED = 4  # an overflow, or an update that a device refused: leave the parameters alone
    ABSORBED = 8  # the overflow was absorbed by hysteresis or tolerance
    AT_CEILING = 16  # max_scale held a growth
    AT_FLOOR = 32  # min_scale held a backoff
    STALLED = 64  # the overflow could not lower the scale
    STOPPED = 128  # the policy gives up: training on would only skip


class State(Struct):
    """One scaler. A value without pointers: copy it, store it, send it. Made by gsc_state_init;
    the fields are for reading.

    factor: the scale in force
    next: the newest scale; another one only with apply_delay: what the next loss is scaled by while
        the update for this one is still under way
    mean: predictive policies: running mean of log2(amax)
    slow_mean: with variance_decay
    mean_square: of its square
    mean_start: weight of the zero that mean began with
    slow_start: likewise of slow_mean
    good: good steps since the last overflow or, but for Growth.EVERY, growth
    steps: all steps since the last change
    overflows: overflows not reset yet
    stalled: overflows in a row that could not lower the scale
    events: Event of the last update
    status: GSC_OK, or the error of the last update on a device; the next good one clears it
    skipped: overflows since the start
    growths: updates since the start that made the scale larger
    backoffs: updates since the start that made it smaller
    reserved: 0
    """

    _fields_ = [
        ("factor", Factor),
        ("next", Factor),
        ("mean", c.c_double),
        ("slow_mean", c.c_double),
        ("mean_square", c.c_double),
        ("mean_start", c.c_double),
        ("slow_start", c.c_double),
        ("good", c.c_int64),
        ("steps", c.c_int64),
        ("overflows", c.c_int64),
        ("stalled", c.c_int64),
        ("events", c.c_uint32),
        ("status", c.c_int32),
        ("skipped", c.c_int64),
        ("growths", c.c_int64),
        ("backoffs", c.c_int64),
        ("reserved", c.c_uint64 * 11),
    ]
