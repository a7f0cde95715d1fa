# Generated from bindings/abi.toml by bindings/generate.py. Do not edit.
defmodule GradScaler.Constants do
  @moduledoc false

  @doc "The names of a group with their numbers."
  def all(:status) do
    [
      ok: 0,
      null: -1,
      struct_size: -2,
      preset: -3,
      policy: -4,
      state: -5,
      report: -6,
      factor: -7,
      value: -8,
      dtype: -9,
      count: -10,
      overlap: -11,
      want: -12,
      capacity: -13,
      corrupt: -14,
      version: -15,
      unavailable: -16,
      memory: -17,
      device: -18
    ]
  end

  def all(:growth) do
    [
      reached: 0,
      exact: 1,
      every: 2,
      steps: 3
    ]
  end

  def all(:limit) do
    [
      clamp: 0,
      always: 1,
      keep: 2,
      stop: 3
    ]
  end

  def all(:reset) do
    [
      on_growth: 1,
      on_good_step: 2,
      on_backoff: 4
    ]
  end

  def all(:arithmetic) do
    [
      f64: 0,
      f32_once: 1,
      f32: 2,
      f32_flush: 3
    ]
  end

  def all(:overflow) do
    [
      element: 0,
      norm: 1
    ]
  end

  def all(:quirk) do
    [
      tolerate_below: 1,
      overflow_counts: 2
    ]
  end

  def all(:want) do
    [
      counts: 1,
      first_bad: 2,
      norm: 4,
      amax: 8,
      underflow: 16,
      histogram: 32
    ]
  end

  def all(:event) do
    [
      grew: 1,
      backed_off: 2,
      skipped: 4,
      absorbed: 8,
      at_ceiling: 16,
      at_floor: 32,
      stalled: 64,
      stopped: 128
    ]
  end

  def all(:dtype) do
    [
      f32: 1,
      f64: 2,
      f16: 3,
      bf16: 4,
      f8_e4m3fn: 5,
      f8_e5m2: 6,
      cb16: 7,
      complex64: 8,
      complex128: 9
    ]
  end

  @doc "The number of a name, of a list of names (their union), or a number as it is."
  def number(_group, number, _label) when is_integer(number), do: number
  def number(_group, [], _label), do: 0

  def number(group, [name | names], label) do
    Bitwise.bor(number(group, name, label), number(group, names, label))
  end

  def number(group, name, label) do
    all(group)[name] ||
      raise ArgumentError,
            "#{label} is #{inspect(name)}, not one of #{inspect(Keyword.keys(all(group)))}"
  end

  @doc "The name of a number; the number itself where it has none."
  def name(group, number) do
    case List.keyfind(all(group), number, 1) do
      {name, _} -> name
      nil -> number
    end
  end

  @doc "The names of the bits that are set."
  def names(_group, 0), do: []

  def names(group, bits) do
    for {name, bit} <- all(group), Bitwise.band(bits, bit) != 0, do: name
  end
end

defmodule GradScaler.Policy do
  @moduledoc """
  The rules of one scaler. Initialise it, then fill it with gsc_policy_preset.

  * `arithmetic` - one of these: `:f64`, `:f32_once`, `:f32`, `:f32_flush`
  * `init_scale` - first scale; 0 is 1
  * `growth_factor` - a growth multiplies by it; at least 1, 0 is 1
  * `backoff_factor` - a backoff multiplies by it; in (0, 1]. 0: divides by growth_factor
  * `growth_interval` - good steps from one growth to the next; 0 never grows
  * `growth_rule` - one of these: `:reached`, `:exact`, `:every`, `:steps`
  * `growth_lag` - steps a count needs beyond the interval
  * `max_scale` - ceiling; 0 is none (infinity)
  * `min_scale` - floor; 0 is none
  * `ceiling_rule` - one of these at max_scale; ALWAYS holds for the start, too: `:clamp`,
    `:always`, `:keep`, `:stop`
  * `floor_rule` - one of these at min_scale; the start itself is never raised: `:clamp`,
    `:always`, `:keep`, `:stop`
  * `overflow_test` - one of these: `:element`, `:norm`
  * `hysteresis` - overflows, counted until overflow_reset, that make a backoff; the ones before
    are absorbed; 0 is 1
  * `overflow_reset` - any of these: what refills the hysteresis: `:on_growth`, `:on_good_step`,
    `:on_backoff`
  * `apply_delay` - 1: a new scale is in force one update later
  * `overflow_tolerance` - overflows, counted until overflow_reset, up to this share of the steps
    since the last change are absorbed; 0 to 1
  * `stall_limit` - `:stopped` at this many overflows in a row that could not lower the scale; 0
    never
  * `quirks` - any of these; 0 in any new policy: `:tolerate_below`, `:overflow_counts`
  * `target_amax` - not 0: the scale is predicted so that amax lands here, and nothing is counted;
    needs `:amax`
  * `mean_decay` - decay of the running mean of log2(amax); 0 up to, not including, 1
  * `variance_decay` - decay of its slower mean and of its square; likewise
  * `margin_sigmas` - standard deviations kept free above the mean
  * `overflow_log2` - the sample of log2(amax) that an overflow stands for
  """
  alias GradScaler.{Constants, Fields}

  @size 152

  defstruct arithmetic: :f64,
            init_scale: 0.0,
            growth_factor: 0.0,
            backoff_factor: 0.0,
            growth_interval: 0,
            growth_rule: :reached,
            growth_lag: 0,
            max_scale: 0.0,
            min_scale: 0.0,
            ceiling_rule: :clamp,
            floor_rule: :clamp,
            overflow_test: :element,
            hysteresis: 0,
            overflow_reset: [],
            apply_delay: 0,
            overflow_tolerance: 0.0,
            stall_limit: 0,
            quirks: [],
            target_amax: 0.0,
            mean_decay: 0.0,
            variance_decay: 0.0,
            margin_sigmas: 0.0,
            overflow_log2: 0.0

  @type t :: %__MODULE__{}

  @doc "The struct that a binary of the library holds."
  def decode(<<
        _::binary-size(4),
        arithmetic::little-unsigned-32,
        init_scale::binary-size(8),
        growth_factor::binary-size(8),
        backoff_factor::binary-size(8),
        growth_interval::little-unsigned-64,
        growth_rule::little-unsigned-32,
        growth_lag::little-unsigned-32,
        max_scale::binary-size(8),
        min_scale::binary-size(8),
        ceiling_rule::little-unsigned-32,
        floor_rule::little-unsigned-32,
        overflow_test::little-unsigned-32,
        hysteresis::little-unsigned-32,
        overflow_reset::little-unsigned-32,
        apply_delay::little-unsigned-32,
        overflow_tolerance::binary-size(8),
        stall_limit::little-unsigned-64,
        quirks::little-unsigned-32,
        _::binary-size(4),
        target_amax::binary-size(8),
        mean_decay::binary-size(8),
        variance_decay::binary-size(8),
        margin_sigmas::binary-size(8),
        overflow_log2::binary-size(8)
      >>) do
    %__MODULE__{
      arithmetic: Constants.name(:arithmetic, arithmetic),
      init_scale: Fields.real(init_scale),
      growth_factor: Fields.real(growth_factor),
      backoff_factor: Fields.real(backoff_factor),
      growth_interval: growth_interval,
      growth_rule: Constants.name(:growth, growth_rule),
      growth_lag: growth_lag,
      max_scale: Fields.real(max_scale),
      min_scale: Fields.real(min_scale),
      ceiling_rule: Constants.name(:limit, ceiling_rule),
      floor_rule: Constants.name(:limit, floor_rule),
      overflow_test: Constants.name(:overflow, overflow_test),
      hysteresis: hysteresis,
      overflow_reset: Constants.names(:reset, overflow_reset),
      apply_delay: apply_delay,
      overflow_tolerance: Fields.real(overflow_tolerance),
      stall_limit: stall_limit,
      quirks: Constants.names(:quirk, quirks),
      target_amax: Fields.real(target_amax),
      mean_decay: Fields.real(mean_decay),
      variance_decay: Fields.real(variance_decay),
      margin_sigmas: Fields.real(margin_sigmas),
      overflow_log2: Fields.real(overflow_log2)
    }
  end

  # Of an older version: the fields that it lacks are 0.
  def decode(older) when byte_size(older) < @size do
    decode(older <> <<0::size((@size - byte_size(older)) * 8)>>)
  end

  @doc "The binary that the library reads; raises `ArgumentError` naming a field that cannot be."
  def encode(%__MODULE__{} = s) do
    <<
      152::little-32,
      Fields.named(:arithmetic, s.arithmetic, "policy.arithmetic")::binary,
      Fields.f64(s.init_scale, "policy.init_scale")::binary,
      Fields.f64(s.growth_factor, "policy.growth_factor")::binary,
      Fields.f64(s.backoff_factor, "policy.backoff_factor")::binary,
      Fields.u64(s.growth_interval, "policy.growth_interval")::binary,
      Fields.named(:growth, s.growth_rule, "policy.growth_rule")::binary,
      Fields.u32(s.growth_lag, "policy.growth_lag")::binary,
      Fields.f64(s.max_scale, "policy.max_scale")::binary,
      Fields.f64(s.min_scale, "policy.min_scale")::binary,
      Fields.named(:limit, s.ceiling_rule, "policy.ceiling_rule")::binary,
      Fields.named(:limit, s.floor_rule, "policy.floor_rule")::binary,
      Fields.named(:overflow, s.overflow_test, "policy.overflow_test")::binary,
      Fields.u32(s.hysteresis, "policy.hysteresis")::binary,
      Fields.named(:reset, s.overflow_reset, "policy.overflow_reset")::binary,
      Fields.u32(s.apply_delay, "policy.apply_delay")::binary,
      Fields.f64(s.overflow_tolerance, "policy.overflow_tolerance")::binary,
      Fields.u64(s.stall_limit, "policy.stall_limit")::binary,
      Fields.named(:quirk, s.quirks, "policy.quirks")::binary,
      0::little-32,
      Fields.f64(s.target_amax, "policy.target_amax")::binary,
      Fields.f64(s.mean_decay, "policy.mean_decay")::binary,
      Fields.f64(s.variance_decay, "policy.variance_decay")::binary,
      Fields.f64(s.margin_sigmas, "policy.margin_sigmas")::binary,
      Fields.f64(s.overflow_log2, "policy.overflow_log2")::binary
    >>
  end
end

defmodule GradScaler.Factor do
  @moduledoc """
  A snapshot of a scale. Copy it freely, to device memory too; fused optimizers read the float
  members in place, of a state before its update, which overwrites them.

  * `scale` - the loss is multiplied by this
  * `inverse` - the gradients are multiplied by this
  * `scale_f32` - scale, rounded
  * `inverse_f32` - inverse, rounded
  * `serial` - updates and gsc_set_scale calls that led to it
  """
  alias GradScaler.Fields

  defstruct scale: 0.0,
            inverse: 0.0,
            scale_f32: 0.0,
            inverse_f32: 0.0,
            serial: 0

  @type t :: %__MODULE__{}

  @doc "The struct that a binary of the library holds."
  def decode(<<
        scale::binary-size(8),
        inverse::binary-size(8),
        scale_f32::binary-size(4),
        inverse_f32::binary-size(4),
        serial::little-unsigned-64
      >>) do
    %__MODULE__{
      scale: Fields.real(scale),
      inverse: Fields.real(inverse),
      scale_f32: Fields.real(scale_f32),
      inverse_f32: Fields.real(inverse_f32),
      serial: serial
    }
  end

  @doc "The binary that the library reads; raises `ArgumentError` naming a field that cannot be."
  def encode(%__MODULE__{} = s) do
    <<
      Fields.f64(s.scale, "factor.scale")::binary,
      Fields.f64(s.inverse, "factor.inverse")::binary,
      Fields.f32(s.scale_f32, "factor.scale_f32")::binary,
      Fields.f32(s.inverse_f32, "factor.inverse_f32")::binary,
      Fields.u64(s.serial, "factor.serial")::binary
    >>
  end
end

defmodule GradScaler.Report do
  @moduledoc """
  Overwritten by the call that fills it. All zeros is the report of an empty list, and adds
  nothing in a merge. The members stand in groups of 64-bit words that one collective each can
  reduce over ranks that hold different gradients and want the same: words 0-3 as int64 MAX, 4-7
  as int64 MIN, 8-9 as double SUM, 10-31 as int64 SUM. gsc_merge does the same for two reports. A
  rank whose call failed contributes zeros, the error in `status`, and overflow and found_inf of
  1, which is also what a device writes: nothing was unscaled, so nobody is to step. The update is
  then refused everywhere.

  * `found_inf` - 1 if an element is Inf or NaN, or became so by unscaling, or the call failed;
    else 0
  * `overflow` - the same as an integer
  * `amax` - largest finite magnitude after unscaling, before rounding to the output's dtype; of a
    complex value its larger part
  * `absent` - any of these that were not asked for: `:counts`, `:first_bad`, `:norm`, `:amax`,
    `:underflow`, `:histogram`
  * `first_bad` - 0: none, else `:tensor` and `:element` of it say where
  * `status` - `:ok`, or the error of a device or rank that failed
  * `sum_squares` - of the finite elements after unscaling; its root is the global norm
  * `elements` - elements seen
  * `nan_count` - elements that are NaN
  * `inf_count` - elements that are Inf, or became so by unscaling
  * `zeros_made` - outputs that are zero while their input was not
  * `subnormals_made` - outputs that are subnormal while their input was not
  * `histogram_elements` - elements that the histogram looked at
  * `histogram` - of them by magnitude after unscaling: [k] those from 2^(4k-48) up to 2^(4k-44);
    [0] all smaller ones but zeros, [15] all finite larger ones
  """
  alias GradScaler.{Constants, Fields}

  defstruct found_inf: 0.0,
            overflow: 0,
            amax: 0.0,
            absent: [],
            first_bad: 0,
            status: 0,
            sum_squares: 0.0,
            elements: 0,
            nan_count: 0,
            inf_count: 0,
            zeros_made: 0,
            subnormals_made: 0,
            histogram_elements: 0,
            histogram: List.duplicate(0, 16)

  @type t :: %__MODULE__{}

  @doc "The struct that a binary of the library holds."
  def decode(<<
        found_inf::binary-size(4),
        overflow::little-signed-32,
        amax::binary-size(8),
        absent::little-unsigned-32,
        _::binary-size(12),
        first_bad::little-signed-64,
        status::little-signed-64,
        _::binary-size(16),
        sum_squares::binary-size(8),
        _::binary-size(8),
        elements::little-signed-64,
        nan_count::little-signed-64,
        inf_count::little-signed-64,
        zeros_made::little-signed-64,
        subnormals_made::little-signed-64,
        histogram_elements::little-signed-64,
        histogram::binary-size(128)
      >>) do
    %__MODULE__{
      found_inf: Fields.real(found_inf),
      overflow: overflow,
      amax: Fields.real(amax),
      absent: Constants.names(:want, absent),
      first_bad: first_bad,
      status: status,
      sum_squares: Fields.real(sum_squares),
      elements: elements,
      nan_count: nan_count,
      inf_count: inf_count,
      zeros_made: zeros_made,
      subnormals_made: subnormals_made,
      histogram_elements: histogram_elements,
      histogram: for(<<x::little-signed-64 <- histogram>>, do: x)
    }
  end

  @doc "The binary that the library reads; raises `ArgumentError` naming a field that cannot be."
  def encode(%__MODULE__{} = s) do
    <<
      Fields.f32(s.found_inf, "report.found_inf")::binary,
      Fields.s32(s.overflow, "report.overflow")::binary,
      Fields.f64(s.amax, "report.amax")::binary,
      Fields.named(:want, s.absent, "report.absent")::binary,
      0::little-96,
      Fields.s64(s.first_bad, "report.first_bad")::binary,
      Fields.s64(s.status, "report.status")::binary,
      0::little-128,
      Fields.f64(s.sum_squares, "report.sum_squares")::binary,
      0::little-64,
      Fields.s64(s.elements, "report.elements")::binary,
      Fields.s64(s.nan_count, "report.nan_count")::binary,
      Fields.s64(s.inf_count, "report.inf_count")::binary,
      Fields.s64(s.zeros_made, "report.zeros_made")::binary,
      Fields.s64(s.subnormals_made, "report.subnormals_made")::binary,
      Fields.s64(s.histogram_elements, "report.histogram_elements")::binary,
      Fields.list(&Fields.s64/2, s.histogram, 16, "report.histogram")::binary
    >>
  end
end

defmodule GradScaler.State do
  @moduledoc """
  One scaler. A value without pointers: copy it, store it, send it. Made by gsc_state_init; the
  fields are for reading.

  * `factor` - the scale in force
  * `next` - the newest scale; another one only with apply_delay: what the next loss is scaled by
    while the update for this one is still under way
  * `mean` - predictive policies: running mean of log2(amax)
  * `slow_mean` - with variance_decay
  * `mean_square` - of its square
  * `mean_start` - weight of the zero that mean began with
  * `slow_start` - likewise of slow_mean
  * `good` - good steps since the last overflow or, but for `:every`, growth
  * `steps` - all steps since the last change
  * `overflows` - overflows not reset yet
  * `stalled` - overflows in a row that could not lower the scale
  * `events` - one of these of the last update: `:grew`, `:backed_off`, `:skipped`, `:absorbed`,
    `:at_ceiling`, `:at_floor`, `:stalled`, `:stopped`
  * `status` - `:ok`, or the error of the last update on a device; the next good one clears it
  * `skipped` - overflows since the start
  * `growths` - updates since the start that made the scale larger
  * `backoffs` - updates since the start that made it smaller
  """
  alias GradScaler.{Constants, Fields}

  defstruct factor: %GradScaler.Factor{},
            next: %GradScaler.Factor{},
            mean: 0.0,
            slow_mean: 0.0,
            mean_square: 0.0,
            mean_start: 0.0,
            slow_start: 0.0,
            good: 0,
            steps: 0,
            overflows: 0,
            stalled: 0,
            events: [],
            status: 0,
            skipped: 0,
            growths: 0,
            backoffs: 0

  @type t :: %__MODULE__{}

  @doc "The struct that a binary of the library holds."
  def decode(<<
        factor::binary-size(32),
        next::binary-size(32),
        mean::binary-size(8),
        slow_mean::binary-size(8),
        mean_square::binary-size(8),
        mean_start::binary-size(8),
        slow_start::binary-size(8),
        good::little-signed-64,
        steps::little-signed-64,
        overflows::little-signed-64,
        stalled::little-signed-64,
        events::little-unsigned-32,
        status::little-signed-32,
        skipped::little-signed-64,
        growths::little-signed-64,
        backoffs::little-signed-64,
        _::binary-size(88)
      >>) do
    %__MODULE__{
      factor: GradScaler.Factor.decode(factor),
      next: GradScaler.Factor.decode(next),
      mean: Fields.real(mean),
      slow_mean: Fields.real(slow_mean),
      mean_square: Fields.real(mean_square),
      mean_start: Fields.real(mean_start),
      slow_start: Fields.real(slow_start),
      good: good,
      steps: steps,
      overflows: overflows,
      stalled: stalled,
      events: Constants.names(:event, events),
      status: status,
      skipped: skipped,
      growths: growths,
      backoffs: backoffs
    }
  end

  @doc "The binary that the library reads; raises `ArgumentError` naming a field that cannot be."
  def encode(%__MODULE__{} = s) do
    <<
      GradScaler.Factor.encode(s.factor)::binary,
      GradScaler.Factor.encode(s.next)::binary,
      Fields.f64(s.mean, "state.mean")::binary,
      Fields.f64(s.slow_mean, "state.slow_mean")::binary,
      Fields.f64(s.mean_square, "state.mean_square")::binary,
      Fields.f64(s.mean_start, "state.mean_start")::binary,
      Fields.f64(s.slow_start, "state.slow_start")::binary,
      Fields.s64(s.good, "state.good")::binary,
      Fields.s64(s.steps, "state.steps")::binary,
      Fields.s64(s.overflows, "state.overflows")::binary,
      Fields.s64(s.stalled, "state.stalled")::binary,
      Fields.named(:event, s.events, "state.events")::binary,
      Fields.s32(s.status, "state.status")::binary,
      Fields.s64(s.skipped, "state.skipped")::binary,
      Fields.s64(s.growths, "state.growths")::binary,
      Fields.s64(s.backoffs, "state.backoffs")::binary,
      0::little-704
    >>
  end
end
