# Generated from include/gradscaler.toml by bindings/elixir/generate.py. Do not edit.
defmodule GradScaler.Constants do
  @moduledoc false

  @doc "Returns the names of a group with their numbers."
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
      capacity: -12,
      corrupt: -13,
      version: -14,
      unavailable: -15,
      memory: -16,
      device: -17,
      format: -18,
      mismatch: -19
    ]
  end

  def all(:feature) do
    [
      cuda: 1
    ]
  end

  def all(:growth) do
    [
      reached: 0,
      exact: 1,
      every: 2,
      all_steps: 3
    ]
  end

  def all(:limit_rule) do
    [
      clamp: 0,
      enforce: 1,
      reject: 2,
      stop: 3,
      clamp_unless_past: 4
    ]
  end

  def all(:overflow_reset) do
    [
      on_growth: 1,
      on_good_step: 2,
      on_backoff: 4
    ]
  end

  def all(:arithmetic) do
    [
      f64: 0,
      f64_to_f32: 1,
      f32: 2,
      f32_flush: 3
    ]
  end

  def all(:overflow_test) do
    [
      element: 0,
      norm: 1
    ]
  end

  def all(:quirk) do
    [
      tolerance_exclusive: 1,
      overflow_is_good: 2,
      allow_lockout: 4
    ]
  end

  def all(:bad_loss) do
    [
      overflow: 0,
      hold: 1
    ]
  end

  def all(:guard_sample) do
    [
      as_is: 0,
      none: 1,
      threshold: 2
    ]
  end

  def all(:guard) do
    [
      clip: 1,
      inclusive: 2,
      stop: 4,
      skip_is_good: 8,
      clip_progressive: 16,
      variance_after_mean: 32,
      bias_corrected: 64,
      clip_to_mean: 128
    ]
  end

  def all(:trait) do
    [
      moves: 1,
      guards: 2,
      needs_norm: 4,
      holds: 8
    ]
  end

  def all(:exec_flag) do
    [
      write_failures: 1
    ]
  end

  def all(:want) do
    [
      norm: 1,
      amax: 2,
      underflow: 4
    ]
  end

  def all(:report_kind) do
    [
      none: 0,
      tensors: 1,
      number: 2,
      merged: 3,
      flag: 4
    ]
  end

  def all(:loss) do
    [
      unknown: 0,
      finite: 1,
      not_finite: 2
    ]
  end

  def all(:merge_kind) do
    [
      shards: 0,
      addends: 1
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
      backoff_failed: 64,
      stopped: 128,
      stale: 256,
      outlier: 512,
      clipped: 1024,
      bad_loss: 2048,
      empty: 4096
    ]
  end

  def all(:outcome) do
    [
      taken: 0,
      let_through: 1,
      clipped: 2,
      skipped: 3,
      stopped: 4
    ]
  end

  def all(:cause) do
    [
      none: 0,
      overflow: 1,
      outlier: 2,
      ceiling: 3,
      other_state: 4,
      failure: 5,
      bad_loss: 6,
      parameter: 7,
      loss_dtype: 8
    ]
  end

  def all(:entry_kind) do
    [
      unused: 0,
      number: 1,
      text: 2,
      null: 3,
      integer: 4,
      boolean: 5
    ]
  end

  def all(:note_kind) do
    [
      format: 1,
      missing: 2,
      ignored: 3,
      changed: 4,
      unusable: 5,
      lost: 6,
      failure: 7,
      not_finite: 8,
      backoff_failed: 9,
      overflows_often: 10,
      guard_skips: 11,
      guard_idle: 12,
      underflows: 13,
      never_grows: 14,
      ceiling_unreachable: 15,
      outside_limits: 16,
      bad_losses: 17,
      start_too_high: 18,
      no_gradients: 19,
      zeros: 20,
      guard_clips: 21
    ]
  end

  def all(:key_use) do
    [
      saved: 1,
      setting: 2,
      numbered: 4
    ]
  end

  def all(:metric) do
    [
      loss_scale: 0,
      skip: 1,
      overflow: 2,
      norm: 3,
      amax: 4,
      zero_share: 5,
      total_overflows: 6,
      total_guard_skips: 7,
      total_growths: 8,
      total_backoffs: 9,
      steps_since_change: 10,
      nan_count: 11,
      inf_count: 12,
      guard_threshold: 13,
      guard_multiplier: 14,
      bad_loss: 15,
      total_bad_losses: 16
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

  def all(:memory_kind) do
    [
      device: 0,
      host: 1
    ]
  end

  @doc "Returns the names of a value in a field of a policy; nil if the field takes a number."
  def of_field("arithmetic", value), do: name(:arithmetic, trunc(value))
  def of_field("growth_rule", value), do: name(:growth, trunc(value))
  def of_field("ceiling_rule", value), do: name(:limit_rule, trunc(value))
  def of_field("floor_rule", value), do: name(:limit_rule, trunc(value))
  def of_field("overflow_test", value), do: name(:overflow_test, trunc(value))
  def of_field("overflow_reset", value), do: names(:overflow_reset, trunc(value))
  def of_field("quirks", value), do: names(:quirk, trunc(value))
  def of_field("bad_loss_rule", value), do: name(:bad_loss, trunc(value))
  def of_field("guard_sample", value), do: name(:guard_sample, trunc(value))
  def of_field("guard_flags", value), do: names(:guard, trunc(value))
  def of_field(_other, _value), do: nil

  @doc "The number of a name, of a list of names (their union), or a number as it is."
  def number(_group, number, _label) when is_integer(number), do: number
  def number(_group, [], _label), do: 0

  def number(group, [name | names], label) do
    Bitwise.bor(number(group, name, label), number(group, names, label))
  end

  def number(group, name, label) do
    (is_atom(name) && all(group)[name]) ||
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

  @doc "The names of the bits that are set, and what has no name as a number."
  def names(_group, 0), do: []

  def names(group, bits) do
    named = for {name, bit} <- all(group), Bitwise.band(bits, bit) != 0, do: name

    case Bitwise.bxor(bits, number(group, named, "")) do
      0 -> named
      unnamed -> named ++ [unnamed]
    end
  end
end

defmodule GradScaler.Policy do
  @moduledoc """
  The rules of a scaler. `GradScaler.new/2` takes the name of a preset and these fields.

  * `arithmetic` - one of these: `:f64`, `:f64_to_f32`, `:f32`, `:f32_flush`
  * `init_scale` - first scale; 0 is 1; at most max_scale, except with `:enforce`, where the first
    scale is then max_scale
  * `growth_factor` - a growth multiplies by this; at least 1; 0 is 1
  * `backoff_factor` - a backoff multiplies by this, in (0, 1]; 0: divides by growth_factor
  * `growth_interval` - good steps from one growth to the next; 0 never grows
  * `growth_rule` - one of these: `:reached`, `:exact`, `:every`, `:all_steps`
  * `growth_extra_steps` - steps that a growth needs beyond the interval
  * `max_scale` - ceiling; 0 is none (infinity)
  * `min_scale` - floor; 0 is none
  * `ceiling_rule` - one of these at max_scale: `:clamp`, `:enforce`, `:reject`, `:stop`,
    `:clamp_unless_past`
  * `floor_rule` - one of these at min_scale; the first scale can be below it: `:clamp` raises it
    at the first backoff, `:enforce` at the first update: `:clamp`, `:enforce`, `:reject`,
    `:stop`, `:clamp_unless_past`
  * `overflow_test` - one of these: `:element`, `:norm`
  * `hysteresis` - number of overflows that make a backoff; the overflows before the last are
    absorbed; overflow_reset says what restarts the count; 0 is 1
  * `overflow_reset` - any of these: events that set that count to 0; 0: none, so after the first
    backoff every overflow backs off: `:on_growth`, `:on_good_step`, `:on_backoff`
  * `apply_delay` - 1: a new scale is in force one update later
  * `overflow_tolerance` - an overflow is absorbed if overflows_since_reset is at most this share
    of steps_since_change; below 1, or 1 with `:tolerance_exclusive`
  * `max_failed_backoffs` - `:stopped` after this many overflows in a row that could not lower the
    scale, or, with `:hold`, after this many bad losses in a row; 0: never
  * `quirks` - any of these; 0 in any new policy: `:tolerance_exclusive`, `:overflow_is_good`,
    `:allow_lockout`
  * `bad_loss_rule` - one of these; `:hold` needs max_failed_backoffs above 0: `:overflow`,
    `:hold`
  * `guard_norm` - a norm above this is an outlier; 0: no such threshold
  * `guard_ratio` - a norm above this times a mean above 0 is an outlier; must be above 1; 0: no
    such threshold
  * `guard_sigmas` - a norm this many standard deviations above the mean is an outlier; 0: no such
    threshold
  * `guard_decay` - factor of the old mean and variance at each sample after the warm-up; below 1;
    0: all samples weigh the same
  * `guard_init_mean` - mean before the first sample, used to judge the first step; 0: none
  * `guard_warmup` - samples before the first step is judged; they enter as they are and weigh the
    same
  * `guard_max_in_a_row` - at this many outliers in a row, the guard accepts a new level: it lets
    this outlier and later ones in the row through; with `:stop` it stops instead; 0: never
  * `guard_sample` - one of these: `:as_is`, `:none`, `:threshold`
  * `guard_flags` - any of these: `:clip`, `:inclusive`, `:stop`, `:skip_is_good`,
    `:clip_progressive`, `:variance_after_mean`, `:bias_corrected`, `:clip_to_mean`
  """
  alias GradScaler.{Constants, Fields}

  defstruct arithmetic: :f64,
            init_scale: 0.0,
            growth_factor: 0.0,
            backoff_factor: 0.0,
            growth_interval: 0,
            growth_rule: :reached,
            growth_extra_steps: 0,
            max_scale: 0.0,
            min_scale: 0.0,
            ceiling_rule: :clamp,
            floor_rule: :clamp,
            overflow_test: :element,
            hysteresis: 0,
            overflow_reset: [],
            apply_delay: 0,
            overflow_tolerance: 0.0,
            max_failed_backoffs: 0,
            quirks: [],
            bad_loss_rule: :overflow,
            guard_norm: 0.0,
            guard_ratio: 0.0,
            guard_sigmas: 0.0,
            guard_decay: 0.0,
            guard_init_mean: 0.0,
            guard_warmup: 0,
            guard_max_in_a_row: 0,
            guard_sample: :as_is,
            guard_flags: []

  @type t :: %__MODULE__{
          arithmetic: atom | integer,
          init_scale: GradScaler.real(),
          growth_factor: GradScaler.real(),
          backoff_factor: GradScaler.real(),
          growth_interval: integer,
          growth_rule: atom | integer,
          growth_extra_steps: integer,
          max_scale: GradScaler.real(),
          min_scale: GradScaler.real(),
          ceiling_rule: atom | integer,
          floor_rule: atom | integer,
          overflow_test: atom | integer,
          hysteresis: integer,
          overflow_reset: [atom | integer],
          apply_delay: integer,
          overflow_tolerance: GradScaler.real(),
          max_failed_backoffs: integer,
          quirks: [atom | integer],
          bad_loss_rule: atom | integer,
          guard_norm: GradScaler.real(),
          guard_ratio: GradScaler.real(),
          guard_sigmas: GradScaler.real(),
          guard_decay: GradScaler.real(),
          guard_init_mean: GradScaler.real(),
          guard_warmup: integer,
          guard_max_in_a_row: integer,
          guard_sample: atom | integer,
          guard_flags: [atom | integer]
        }

  @doc "The struct that a binary of the library holds."
  @spec decode(binary) :: t
  def decode(<<
        _::binary-size(4),
        arithmetic::little-unsigned-32,
        init_scale::binary-size(8),
        growth_factor::binary-size(8),
        backoff_factor::binary-size(8),
        growth_interval::little-unsigned-64,
        growth_rule::little-unsigned-32,
        growth_extra_steps::little-unsigned-32,
        max_scale::binary-size(8),
        min_scale::binary-size(8),
        ceiling_rule::little-unsigned-32,
        floor_rule::little-unsigned-32,
        overflow_test::little-unsigned-32,
        hysteresis::little-unsigned-32,
        overflow_reset::little-unsigned-32,
        apply_delay::little-unsigned-32,
        overflow_tolerance::binary-size(8),
        max_failed_backoffs::little-unsigned-64,
        quirks::little-unsigned-32,
        bad_loss_rule::little-unsigned-32,
        guard_norm::binary-size(8),
        guard_ratio::binary-size(8),
        guard_sigmas::binary-size(8),
        guard_decay::binary-size(8),
        guard_init_mean::binary-size(8),
        guard_warmup::little-unsigned-64,
        guard_max_in_a_row::little-unsigned-64,
        guard_sample::little-unsigned-32,
        guard_flags::little-unsigned-32
      >>) do
    %__MODULE__{
      arithmetic: Constants.name(:arithmetic, arithmetic),
      init_scale: Fields.real(init_scale),
      growth_factor: Fields.real(growth_factor),
      backoff_factor: Fields.real(backoff_factor),
      growth_interval: growth_interval,
      growth_rule: Constants.name(:growth, growth_rule),
      growth_extra_steps: growth_extra_steps,
      max_scale: Fields.real(max_scale),
      min_scale: Fields.real(min_scale),
      ceiling_rule: Constants.name(:limit_rule, ceiling_rule),
      floor_rule: Constants.name(:limit_rule, floor_rule),
      overflow_test: Constants.name(:overflow_test, overflow_test),
      hysteresis: hysteresis,
      overflow_reset: Constants.names(:overflow_reset, overflow_reset),
      apply_delay: apply_delay,
      overflow_tolerance: Fields.real(overflow_tolerance),
      max_failed_backoffs: max_failed_backoffs,
      quirks: Constants.names(:quirk, quirks),
      bad_loss_rule: Constants.name(:bad_loss, bad_loss_rule),
      guard_norm: Fields.real(guard_norm),
      guard_ratio: Fields.real(guard_ratio),
      guard_sigmas: Fields.real(guard_sigmas),
      guard_decay: Fields.real(guard_decay),
      guard_init_mean: Fields.real(guard_init_mean),
      guard_warmup: guard_warmup,
      guard_max_in_a_row: guard_max_in_a_row,
      guard_sample: Constants.name(:guard_sample, guard_sample),
      guard_flags: Constants.names(:guard, guard_flags)
    }
  end

  def decode(other), do: GradScaler.Error.check!(GradScaler.Native.policy_check(other))

  @doc "The binary that the library reads; raises `ArgumentError` naming a field that cannot be."
  @spec encode(t) :: binary
  def encode(%__MODULE__{bad_loss_rule: _} = s) do
    <<
      176::little-32,
      Fields.named(:arithmetic, s.arithmetic, "policy.arithmetic", &Fields.u32/2)::binary,
      Fields.f64(s.init_scale, "policy.init_scale")::binary,
      Fields.f64(s.growth_factor, "policy.growth_factor")::binary,
      Fields.f64(s.backoff_factor, "policy.backoff_factor")::binary,
      Fields.u64(s.growth_interval, "policy.growth_interval")::binary,
      Fields.named(:growth, s.growth_rule, "policy.growth_rule", &Fields.u32/2)::binary,
      Fields.u32(s.growth_extra_steps, "policy.growth_extra_steps")::binary,
      Fields.f64(s.max_scale, "policy.max_scale")::binary,
      Fields.f64(s.min_scale, "policy.min_scale")::binary,
      Fields.named(:limit_rule, s.ceiling_rule, "policy.ceiling_rule", &Fields.u32/2)::binary,
      Fields.named(:limit_rule, s.floor_rule, "policy.floor_rule", &Fields.u32/2)::binary,
      Fields.named(:overflow_test, s.overflow_test, "policy.overflow_test", &Fields.u32/2)::binary,
      Fields.u32(s.hysteresis, "policy.hysteresis")::binary,
      Fields.named(:overflow_reset, s.overflow_reset, "policy.overflow_reset", &Fields.u32/2)::binary,
      Fields.u32(s.apply_delay, "policy.apply_delay")::binary,
      Fields.f64(s.overflow_tolerance, "policy.overflow_tolerance")::binary,
      Fields.u64(s.max_failed_backoffs, "policy.max_failed_backoffs")::binary,
      Fields.named(:quirk, s.quirks, "policy.quirks", &Fields.u32/2)::binary,
      Fields.named(:bad_loss, s.bad_loss_rule, "policy.bad_loss_rule", &Fields.u32/2)::binary,
      Fields.f64(s.guard_norm, "policy.guard_norm")::binary,
      Fields.f64(s.guard_ratio, "policy.guard_ratio")::binary,
      Fields.f64(s.guard_sigmas, "policy.guard_sigmas")::binary,
      Fields.f64(s.guard_decay, "policy.guard_decay")::binary,
      Fields.f64(s.guard_init_mean, "policy.guard_init_mean")::binary,
      Fields.u64(s.guard_warmup, "policy.guard_warmup")::binary,
      Fields.u64(s.guard_max_in_a_row, "policy.guard_max_in_a_row")::binary,
      Fields.named(:guard_sample, s.guard_sample, "policy.guard_sample", &Fields.u32/2)::binary,
      Fields.named(:guard, s.guard_flags, "policy.guard_flags", &Fields.u32/2)::binary
    >>
  end

  def encode(%__MODULE__{}), do: Fields.refuse_candidate("policy")
end

defmodule GradScaler.Factor do
  @moduledoc false
  alias GradScaler.Fields

  defstruct scale: 0.0,
            inverse: 0.0,
            scale_f32: 0.0,
            inverse_f32: 0.0,
            generation: 0

  @type t :: %__MODULE__{
          scale: GradScaler.real(),
          inverse: GradScaler.real(),
          scale_f32: GradScaler.real(),
          inverse_f32: GradScaler.real(),
          generation: integer
        }

  @doc "The struct that a binary of the library holds."
  @spec decode(binary) :: t
  def decode(<<
        scale::binary-size(8),
        inverse::binary-size(8),
        scale_f32::binary-size(4),
        inverse_f32::binary-size(4),
        generation::little-unsigned-64
      >>) do
    %__MODULE__{
      scale: Fields.real(scale),
      inverse: Fields.real(inverse),
      scale_f32: Fields.real(scale_f32),
      inverse_f32: Fields.real(inverse_f32),
      generation: generation
    }
  end

  def decode(other) do
    Fields.refuse("factor", other, "32 bytes, the reserved ones 0")
  end

  @doc "The binary that the library reads; raises `ArgumentError` naming a field that cannot be."
  @spec encode(t) :: binary
  def encode(%__MODULE__{} = s) do
    <<
      Fields.f64(s.scale, "factor.scale")::binary,
      Fields.f64(s.inverse, "factor.inverse")::binary,
      Fields.f32(s.scale_f32, "factor.scale_f32")::binary,
      Fields.f32(s.inverse_f32, "factor.inverse_f32")::binary,
      Fields.u64(s.generation, "factor.generation")::binary
    >>
  end
end

defmodule GradScaler.Report do
  @moduledoc """
  The result of a pass over gradients, for `GradScaler.update/2`. `GradScaler.overflows/1`,
  `GradScaler.norm/1` and `GradScaler.per_tensor/1` read it.

  * `found_inf` - for fused optimizers that run before the update: not 0 for an overflow, or for a
    bad loss if the policy that the call was given holds
  * `overflow` - true: an element is Inf or NaN or became so, or the policy says so, or a device
    or rank failed
  * `status` - `:ok`, or the error of a call: `:ok`, `:null`, `:struct_size`, `:preset`,
    `:policy`, `:state`, `:report`, `:factor`, `:value`, `:dtype`, `:count`, `:overlap`,
    `:capacity`, `:corrupt`, `:version`, `:unavailable`, `:memory`, `:device`, `:format`,
    `:mismatch`
  * `measured` - any of these: `:norm`, `:amax`, `:underflow`
  * `generation` - generation of the factor; 0: unknown
  * `amax` - largest finite magnitude after unscaling, before rounding; a complex element counts
    with its larger part
  * `sum_squares` - sum of squares of the finite elements after unscaling; its square root is the
    norm
  * `elements` - number of elements
  * `nan_count` - elements that are NaN
  * `inf_count` - elements that are Inf, or became so by unscaling
  * `first_tensor` - index of the tensor with the first NaN or Inf; 0 if there is none
  * `first_element` - index of that element in the tensor; 0 if there is none
  * `last_tensor` - index of the last tensor with NaN or Inf: in a list in the model's order, the
    one nearest to the cause of an overflow in the backward pass; 0 if there is none
  * `underflows_to_zero` - outputs that are zero although their input was not
  * `underflows_to_subnormal` - outputs that are subnormal although their input was not
  * `clamped` - elements that `clamp:` changed
  * `digest` - digest of policy and state, set by `GradScaler.set_rank/3`; 0: none
  * `status_rank_plus_1` - 1 + the rank of `status`; 0: unknown
  * `first_rank_plus_1` - 1 + the rank of first_tensor, or, if no element was counted, of the
    first report with an overflow; 0: unknown
  * `last_rank_plus_1` - 1 + the rank of last_tensor, or, if no element was counted, of the last
    report with an overflow; 0: unknown
  * `loss_rank_plus_1` - 1 + the rank of the first bad loss; 0: unknown
  * `loss` - one of these: the loss before it was scaled; `:unknown` in a `:flag`, a `:number` and
    a report of zeros: `:unknown`, `:finite`, `:not_finite`
  * `kind` - one of these: `:none`, `:tensors`, `:number`, `:merged`, `:flag`
  * `flags` - 0
  * `has_flag` - true: a `:merged` report with a `:flag` among its reports, so 0 elements do not
    mean that there were no gradients
  * `number` - the number of a `:number`, which a policy judges as a norm; 0 if it is not finite.
    0 in other reports
  * `per_tensor` - what `GradScaler.per_tensor/1` reads: a report of each tensor, or nil
  * `paths` - where those are in the tree, or nil; in a merged report the paths for first_tensor
  * `last_paths` - the paths for last_tensor, or nil
  * `histogram` - how many magnitudes are below 2^-44, in each step of a factor 16 above, and
    looked at: 17 words, or nil
  """
  alias GradScaler.{Constants, Fields}

  @derive {Inspect, except: [:per_tensor, :paths, :last_paths, :histogram]}
  defstruct found_inf: false,
            overflow: false,
            status: :ok,
            measured: [],
            generation: 0,
            amax: 0.0,
            sum_squares: 0.0,
            elements: 0,
            nan_count: 0,
            inf_count: 0,
            first_tensor: 0,
            first_element: 0,
            last_tensor: 0,
            underflows_to_zero: 0,
            underflows_to_subnormal: 0,
            clamped: 0,
            digest: 0,
            status_rank_plus_1: 0,
            first_rank_plus_1: 0,
            last_rank_plus_1: 0,
            loss_rank_plus_1: 0,
            loss: :unknown,
            kind: :none,
            flags: 0,
            has_flag: false,
            number: 0.0,
            per_tensor: nil,
            paths: nil,
            last_paths: nil,
            histogram: nil

  @type t :: %__MODULE__{
          found_inf: boolean,
          overflow: boolean,
          status: atom | integer,
          measured: [atom | integer],
          generation: integer,
          amax: GradScaler.real(),
          sum_squares: GradScaler.real(),
          elements: integer,
          nan_count: integer,
          inf_count: integer,
          first_tensor: integer,
          first_element: integer,
          last_tensor: integer,
          underflows_to_zero: integer,
          underflows_to_subnormal: integer,
          clamped: integer,
          digest: integer,
          status_rank_plus_1: integer,
          first_rank_plus_1: integer,
          last_rank_plus_1: integer,
          loss_rank_plus_1: integer,
          loss: atom | integer,
          kind: atom | integer,
          flags: integer,
          has_flag: boolean,
          number: GradScaler.real(),
          per_tensor: term,
          paths: term,
          last_paths: term,
          histogram: term
        }

  @doc "The struct that a binary of the library holds."
  @spec decode(binary) :: t
  def decode(<<
        found_inf::binary-size(4),
        overflow::little-signed-32,
        status::little-signed-32,
        measured::little-unsigned-32,
        generation::little-unsigned-64,
        amax::binary-size(8),
        sum_squares::binary-size(8),
        elements::little-signed-64,
        nan_count::little-signed-64,
        inf_count::little-signed-64,
        first_tensor::little-signed-64,
        first_element::little-signed-64,
        last_tensor::little-signed-64,
        underflows_to_zero::little-signed-64,
        underflows_to_subnormal::little-signed-64,
        clamped::little-signed-64,
        digest::little-unsigned-64,
        status_rank_plus_1::little-unsigned-32,
        first_rank_plus_1::little-unsigned-32,
        last_rank_plus_1::little-unsigned-32,
        loss_rank_plus_1::little-unsigned-32,
        loss::little-unsigned-32,
        kind::little-unsigned-32,
        flags::little-unsigned-32,
        has_flag::little-unsigned-32,
        number::binary-size(8),
        0::768
      >>) do
    %__MODULE__{
      found_inf: overflow != 0 or Fields.real(found_inf) != 0.0,
      overflow: overflow != 0 or (Fields.real(found_inf) != 0.0 and loss != 2),
      status: Constants.name(:status, status),
      measured: Constants.names(:want, measured),
      generation: generation,
      amax: Fields.real(amax),
      sum_squares: Fields.real(sum_squares),
      elements: elements,
      nan_count: nan_count,
      inf_count: inf_count,
      first_tensor: first_tensor,
      first_element: first_element,
      last_tensor: last_tensor,
      underflows_to_zero: underflows_to_zero,
      underflows_to_subnormal: underflows_to_subnormal,
      clamped: clamped,
      digest: digest,
      status_rank_plus_1: status_rank_plus_1,
      first_rank_plus_1: first_rank_plus_1,
      last_rank_plus_1: last_rank_plus_1,
      loss_rank_plus_1: loss_rank_plus_1,
      loss: Constants.name(:loss, loss),
      kind: Constants.name(:report_kind, kind),
      flags: flags,
      has_flag: has_flag != 0,
      number: Fields.real(number)
    }
  end

  def decode(other) do
    Fields.refuse("report", other, "256 bytes, the reserved ones 0")
  end

  @doc "The binary that the library reads; raises `ArgumentError` naming a field that cannot be."
  @spec encode(t) :: binary
  def encode(%__MODULE__{loss: _} = s) do
    <<
      Fields.bit(s.overflow == true or s.found_inf, "report.found_inf")::little-float-32,
      Fields.bit(s.overflow, "report.overflow")::little-signed-32,
      Fields.named(:status, s.status, "report.status", &Fields.s32/2)::binary,
      Fields.named(:want, s.measured, "report.measured", &Fields.u32/2)::binary,
      Fields.u64(s.generation, "report.generation")::binary,
      Fields.f64(s.amax, "report.amax")::binary,
      Fields.f64(s.sum_squares, "report.sum_squares")::binary,
      Fields.s64(s.elements, "report.elements")::binary,
      Fields.s64(s.nan_count, "report.nan_count")::binary,
      Fields.s64(s.inf_count, "report.inf_count")::binary,
      Fields.s64(s.first_tensor, "report.first_tensor")::binary,
      Fields.s64(s.first_element, "report.first_element")::binary,
      Fields.s64(s.last_tensor, "report.last_tensor")::binary,
      Fields.s64(s.underflows_to_zero, "report.underflows_to_zero")::binary,
      Fields.s64(s.underflows_to_subnormal, "report.underflows_to_subnormal")::binary,
      Fields.s64(s.clamped, "report.clamped")::binary,
      Fields.u64(s.digest, "report.digest")::binary,
      Fields.u32(s.status_rank_plus_1, "report.status_rank_plus_1")::binary,
      Fields.u32(s.first_rank_plus_1, "report.first_rank_plus_1")::binary,
      Fields.u32(s.last_rank_plus_1, "report.last_rank_plus_1")::binary,
      Fields.u32(s.loss_rank_plus_1, "report.loss_rank_plus_1")::binary,
      Fields.named(:loss, s.loss, "report.loss", &Fields.u32/2)::binary,
      Fields.named(:report_kind, s.kind, "report.kind", &Fields.u32/2)::binary,
      Fields.u32(s.flags, "report.flags")::binary,
      Fields.bit(s.has_flag, "report.has_flag")::little-unsigned-32,
      Fields.f64(s.number, "report.number")::binary,
      0::little-768
    >>
  end

  def encode(%__MODULE__{}), do: Fields.refuse_candidate("report")
end

defmodule GradScaler.State do
  @moduledoc """
  The scale and its counts, as `GradScaler.state/1` returns them: all that a scaler remembers.

  * `factor` - the scale in force
  * `next` - the newest scale. Without apply_delay it equals `factor`. With apply_delay the next
    update copies it to `factor`; a loss that you scale before that update needs `next`
  * `good_steps` - good steps since the last overflow or growth; a growth that max_scale limited
    also counts; with `:every` since the last overflow
  * `steps_since_change` - all steps since the scale changed
  * `overflows_since_reset` - overflows not reset yet
  * `failed_backoffs` - overflows in a row that could not lower the scale
  * `bad_losses_in_a_row` - bad losses in a row: a finite loss sets this to 0, and so does a step
    without overflow of an unknown loss
  * `events` - any of these of the last update: `:grew`, `:backed_off`, `:skipped`, `:absorbed`,
    `:at_ceiling`, `:at_floor`, `:backoff_failed`, `:stopped`, `:stale`, `:outlier`, `:clipped`,
    `:bad_loss`, `:empty`
  * `status` - `:ok`, or the error of the last update: `:ok`, `:null`, `:struct_size`, `:preset`,
    `:policy`, `:state`, `:report`, `:factor`, `:value`, `:dtype`, `:count`, `:overlap`,
    `:capacity`, `:corrupt`, `:version`, `:unavailable`, `:memory`, `:device`, `:format`,
    `:mismatch`
  * `total_updates` - updates since the start
  * `total_overflows` - overflows since the start, without the guard's skips and held bad losses
  * `total_bad_losses` - updates since the start with a bad loss, held or not
  * `total_growths` - updates since the start that made the scale larger
  * `total_backoffs` - updates since the start that made the scale smaller
  * `skip_f32` - 1 with `:skipped`, else 0: found_inf for a fused optimizer that runs after the
    update
  * `skip` - 1 with `:skipped`, else 0: leave the parameters alone
  * `guard_mean` - policies that guard: mean of the samples
  * `guard_variance` - variance of the samples
  * `guard_count` - number of samples
  * `guard_in_a_row` - outliers in a row
  * `total_guard_skips` - steps since the start that were skipped as outliers
  * `guard_multiplier` - multiplier of the last update: 1; below 1 if it clips; 0 with `:skipped`
  * `guard_threshold` - threshold that guard_value was compared with; 0: none
  * `guard_value` - norm or number that the last update judged; 0: none
  * `total_guard_clips` - steps since the start that the guard clipped
  * `nans_in_a_row` - updates in a row with a NaN among the gradients; an overflow without known
    elements does not change it
  * `empty_in_a_row` - updates in a row with `:empty`
  * `updates_at_growth` - total_updates when the scale last grew; before any growth, at the first
    good step; 0: neither yet
  * `overflows_at_growth` - total_overflows at the same update
  """
  alias GradScaler.{Constants, Fields}

  defstruct factor: %GradScaler.Factor{},
            next: %GradScaler.Factor{},
            good_steps: 0,
            steps_since_change: 0,
            overflows_since_reset: 0,
            failed_backoffs: 0,
            bad_losses_in_a_row: 0,
            events: [],
            status: :ok,
            total_updates: 0,
            total_overflows: 0,
            total_bad_losses: 0,
            total_growths: 0,
            total_backoffs: 0,
            skip_f32: 0.0,
            skip: 0,
            guard_mean: 0.0,
            guard_variance: 0.0,
            guard_count: 0,
            guard_in_a_row: 0,
            total_guard_skips: 0,
            guard_multiplier: 0.0,
            guard_threshold: 0.0,
            guard_value: 0.0,
            total_guard_clips: 0,
            nans_in_a_row: 0,
            empty_in_a_row: 0,
            updates_at_growth: 0,
            overflows_at_growth: 0

  @type t :: %__MODULE__{
          factor: %GradScaler.Factor{},
          next: %GradScaler.Factor{},
          good_steps: integer,
          steps_since_change: integer,
          overflows_since_reset: integer,
          failed_backoffs: integer,
          bad_losses_in_a_row: integer,
          events: [atom | integer],
          status: atom | integer,
          total_updates: integer,
          total_overflows: integer,
          total_bad_losses: integer,
          total_growths: integer,
          total_backoffs: integer,
          skip_f32: GradScaler.real(),
          skip: integer,
          guard_mean: GradScaler.real(),
          guard_variance: GradScaler.real(),
          guard_count: integer,
          guard_in_a_row: integer,
          total_guard_skips: integer,
          guard_multiplier: GradScaler.real(),
          guard_threshold: GradScaler.real(),
          guard_value: GradScaler.real(),
          total_guard_clips: integer,
          nans_in_a_row: integer,
          empty_in_a_row: integer,
          updates_at_growth: integer,
          overflows_at_growth: integer
        }

  @doc "The struct that a binary of the library holds."
  @spec decode(binary) :: t
  # A candidate before 0.10 kept two weights up to 1.0, as doubles, where these two counts are.
  def decode(<<_::binary-size(88), a::little-signed-64, b::little-signed-64, _::binary>>)
      when a >= 0x1FFFFFFFFFFFFFFF and b >= 0x1FFFFFFFFFFFFFFF do
    Fields.refuse_candidate("state")
  end

  def decode(<<
        factor::binary-size(32),
        next::binary-size(32),
        good_steps::little-signed-64,
        steps_since_change::little-signed-64,
        overflows_since_reset::little-signed-64,
        failed_backoffs::little-signed-64,
        bad_losses_in_a_row::little-signed-64,
        events::little-unsigned-32,
        status::little-signed-32,
        total_updates::little-signed-64,
        total_overflows::little-signed-64,
        total_bad_losses::little-signed-64,
        total_growths::little-signed-64,
        total_backoffs::little-signed-64,
        skip_f32::binary-size(4),
        skip::little-signed-32,
        guard_mean::binary-size(8),
        guard_variance::binary-size(8),
        guard_count::little-signed-64,
        guard_in_a_row::little-signed-64,
        total_guard_skips::little-signed-64,
        guard_multiplier::binary-size(8),
        guard_threshold::binary-size(8),
        guard_value::binary-size(8),
        total_guard_clips::little-signed-64,
        nans_in_a_row::little-signed-64,
        empty_in_a_row::little-signed-64,
        updates_at_growth::little-signed-64,
        overflows_at_growth::little-signed-64,
        0::960
      >>) do
    %__MODULE__{
      factor: GradScaler.Factor.decode(factor),
      next: GradScaler.Factor.decode(next),
      good_steps: good_steps,
      steps_since_change: steps_since_change,
      overflows_since_reset: overflows_since_reset,
      failed_backoffs: failed_backoffs,
      bad_losses_in_a_row: bad_losses_in_a_row,
      events: Constants.names(:event, events),
      status: Constants.name(:status, status),
      total_updates: total_updates,
      total_overflows: total_overflows,
      total_bad_losses: total_bad_losses,
      total_growths: total_growths,
      total_backoffs: total_backoffs,
      skip_f32: Fields.real(skip_f32),
      skip: skip,
      guard_mean: Fields.real(guard_mean),
      guard_variance: Fields.real(guard_variance),
      guard_count: guard_count,
      guard_in_a_row: guard_in_a_row,
      total_guard_skips: total_guard_skips,
      guard_multiplier: Fields.real(guard_multiplier),
      guard_threshold: Fields.real(guard_threshold),
      guard_value: Fields.real(guard_value),
      total_guard_clips: total_guard_clips,
      nans_in_a_row: nans_in_a_row,
      empty_in_a_row: empty_in_a_row,
      updates_at_growth: updates_at_growth,
      overflows_at_growth: overflows_at_growth
    }
  end

  def decode(other) do
    Fields.refuse("state", other, "384 bytes, the reserved ones 0")
  end

  @doc "The binary that the library reads; raises `ArgumentError` naming a field that cannot be."
  @spec encode(t) :: binary
  def encode(%__MODULE__{bad_losses_in_a_row: _} = s) do
    <<
      GradScaler.Factor.encode(s.factor)::binary,
      GradScaler.Factor.encode(s.next)::binary,
      Fields.s64(s.good_steps, "state.good_steps")::binary,
      Fields.s64(s.steps_since_change, "state.steps_since_change")::binary,
      Fields.s64(s.overflows_since_reset, "state.overflows_since_reset")::binary,
      Fields.s64(s.failed_backoffs, "state.failed_backoffs")::binary,
      Fields.s64(s.bad_losses_in_a_row, "state.bad_losses_in_a_row")::binary,
      Fields.named(:event, s.events, "state.events", &Fields.u32/2)::binary,
      Fields.named(:status, s.status, "state.status", &Fields.s32/2)::binary,
      Fields.s64(s.total_updates, "state.total_updates")::binary,
      Fields.s64(s.total_overflows, "state.total_overflows")::binary,
      Fields.s64(s.total_bad_losses, "state.total_bad_losses")::binary,
      Fields.s64(s.total_growths, "state.total_growths")::binary,
      Fields.s64(s.total_backoffs, "state.total_backoffs")::binary,
      Fields.f32(s.skip_f32, "state.skip_f32")::binary,
      Fields.s32(s.skip, "state.skip")::binary,
      Fields.f64(s.guard_mean, "state.guard_mean")::binary,
      Fields.f64(s.guard_variance, "state.guard_variance")::binary,
      Fields.s64(s.guard_count, "state.guard_count")::binary,
      Fields.s64(s.guard_in_a_row, "state.guard_in_a_row")::binary,
      Fields.s64(s.total_guard_skips, "state.total_guard_skips")::binary,
      Fields.f64(s.guard_multiplier, "state.guard_multiplier")::binary,
      Fields.f64(s.guard_threshold, "state.guard_threshold")::binary,
      Fields.f64(s.guard_value, "state.guard_value")::binary,
      Fields.s64(s.total_guard_clips, "state.total_guard_clips")::binary,
      Fields.s64(s.nans_in_a_row, "state.nans_in_a_row")::binary,
      Fields.s64(s.empty_in_a_row, "state.empty_in_a_row")::binary,
      Fields.s64(s.updates_at_growth, "state.updates_at_growth")::binary,
      Fields.s64(s.overflows_at_growth, "state.overflows_at_growth")::binary,
      0::little-960
    >>
  end

  def encode(%__MODULE__{}), do: Fields.refuse_candidate("state")
end

defmodule GradScaler.Evidence do
  @moduledoc """
  The facts about a step beside its report, as options of `GradScaler.reason/3`. 0 is unknown.

  * `bad_parameters` - tensors of the list with NaN or Inf in their parameter
  * `parameter_plus_1` - 1 + index of the first of them
  * `scale` - by which the losses of the step were multiplied
  * `loss_dtype` - dtype of the losses before they were scaled, `:f32` ...
  * `losses` - losses of this rank that were scaled in the step, if it is known which of them were
    finite
  * `bad_loss` - number, from 1, of the first of them that was not finite before it was scaled; 0:
    all were finite, or `losses` is 0
  * `ranks` - ranks that share the gradients
  """
  alias GradScaler.Fields

  defstruct bad_parameters: 0,
            parameter_plus_1: 0,
            scale: 0.0,
            loss_dtype: 0,
            losses: 0,
            bad_loss: 0,
            ranks: 0

  @type t :: %__MODULE__{
          bad_parameters: integer,
          parameter_plus_1: integer,
          scale: GradScaler.real(),
          loss_dtype: integer,
          losses: integer,
          bad_loss: integer,
          ranks: integer
        }

  @doc "The struct that a binary of the library holds."
  @spec decode(binary) :: t
  def decode(<<
        bad_parameters::little-signed-64,
        parameter_plus_1::little-signed-64,
        scale::binary-size(8),
        loss_dtype::little-unsigned-32,
        losses::little-unsigned-32,
        bad_loss::little-unsigned-32,
        ranks::little-unsigned-32,
        0::192
      >>) do
    %__MODULE__{
      bad_parameters: bad_parameters,
      parameter_plus_1: parameter_plus_1,
      scale: Fields.real(scale),
      loss_dtype: loss_dtype,
      losses: losses,
      bad_loss: bad_loss,
      ranks: ranks
    }
  end

  def decode(other) do
    Fields.refuse("evidence", other, "64 bytes, the reserved ones 0")
  end

  @doc "The binary that the library reads; raises `ArgumentError` naming a field that cannot be."
  @spec encode(t) :: binary
  def encode(%__MODULE__{} = s) do
    <<
      Fields.s64(s.bad_parameters, "evidence.bad_parameters")::binary,
      Fields.s64(s.parameter_plus_1, "evidence.parameter_plus_1")::binary,
      Fields.f64(s.scale, "evidence.scale")::binary,
      Fields.u32(s.loss_dtype, "evidence.loss_dtype")::binary,
      Fields.u32(s.losses, "evidence.losses")::binary,
      Fields.u32(s.bad_loss, "evidence.bad_loss")::binary,
      Fields.u32(s.ranks, "evidence.ranks")::binary,
      0::little-192
    >>
  end
end

defmodule GradScaler.Reason do
  @moduledoc """
  The parts of the sentence that `GradScaler.reason/3` returns: why a step was taken or skipped.

  * `outcome` - one of these: `:taken`, `:let_through`, `:clipped`, `:skipped`, `:stopped`
  * `cause` - one of these: `:none`, `:overflow`, `:outlier`, `:ceiling`, `:other_state`,
    `:failure`, `:bad_loss`, `:parameter`, `:loss_dtype`
  * `value` - with `:outlier`, the norm or number that was judged; 0: unknown
  * `threshold` - with `:outlier`, the threshold that `value` is above
  * `multiplier` - 1; below 1 if clipped, 0 if skipped
  * `in_a_row` - outliers in a row with `:outlier`, bad losses in a row with `:bad_loss`
  * `nan_count` - elements that are NaN; 0 also if unknown
  * `inf_count` - elements that are Inf; 0 also if unknown
  * `bad_tensors` - tensors with NaN or Inf; 0: none, or unknown
  * `tensor` - with `:parameter`, index of the first bad parameter; else index of the bad tensor
    that is nearest to the cause, the first in `order` or else the last of the list; nil: none, or
    unknown
  * `tensor_before` - index of the tensor before that one in `order`, which is finite; nil: none,
    or unknown
  * `rank` - rank of the bad tensor or, with `:bad_loss`, of the first bad loss; without both,
    rank of the last report with an overflow; nil: unknown
  * `message` - a sentence for a log, such as `skipped: 3 NaN in 'h.3.attn.weight' alone`; empty
    if the step is taken as it is
  """
  alias GradScaler.{Constants, Fields}

  defstruct outcome: :taken,
            cause: :none,
            value: 0.0,
            threshold: 0.0,
            multiplier: 0.0,
            in_a_row: 0,
            nan_count: 0,
            inf_count: 0,
            bad_tensors: 0,
            tensor: nil,
            tensor_before: nil,
            rank: nil,
            message: ""

  @type t :: %__MODULE__{
          outcome: atom | integer,
          cause: atom | integer,
          value: GradScaler.real(),
          threshold: GradScaler.real(),
          multiplier: GradScaler.real(),
          in_a_row: integer,
          nan_count: integer,
          inf_count: integer,
          bad_tensors: integer,
          tensor: integer | nil,
          tensor_before: integer | nil,
          rank: integer | nil,
          message: binary
        }

  @doc "The struct that a binary of the library holds."
  @spec decode(binary) :: t
  def decode(<<
        outcome::little-unsigned-32,
        cause::little-unsigned-32,
        value::binary-size(8),
        threshold::binary-size(8),
        multiplier::binary-size(8),
        in_a_row::little-signed-64,
        nan_count::little-signed-64,
        inf_count::little-signed-64,
        bad_tensors::little-signed-64,
        tensor::little-signed-64,
        tensor_before::little-signed-64,
        rank::little-signed-64,
        message::binary-size(512),
        0::320
      >>) do
    %__MODULE__{
      outcome: Constants.name(:outcome, outcome),
      cause: Constants.name(:cause, cause),
      value: Fields.real(value),
      threshold: Fields.real(threshold),
      multiplier: Fields.real(multiplier),
      in_a_row: in_a_row,
      nan_count: nan_count,
      inf_count: inf_count,
      bad_tensors: bad_tensors,
      tensor: if(tensor >= 0, do: tensor),
      tensor_before: if(tensor_before >= 0, do: tensor_before),
      rank: if(rank >= 0, do: rank),
      message: Fields.string(message)
    }
  end

  def decode(other) do
    Fields.refuse("reason", other, "640 bytes, the reserved ones 0")
  end

  @doc "The binary that the library reads; raises `ArgumentError` naming a field that cannot be."
  @spec encode(t) :: binary
  def encode(%__MODULE__{} = s) do
    <<
      Fields.named(:outcome, s.outcome, "reason.outcome", &Fields.u32/2)::binary,
      Fields.named(:cause, s.cause, "reason.cause", &Fields.u32/2)::binary,
      Fields.f64(s.value, "reason.value")::binary,
      Fields.f64(s.threshold, "reason.threshold")::binary,
      Fields.f64(s.multiplier, "reason.multiplier")::binary,
      Fields.s64(s.in_a_row, "reason.in_a_row")::binary,
      Fields.s64(s.nan_count, "reason.nan_count")::binary,
      Fields.s64(s.inf_count, "reason.inf_count")::binary,
      Fields.s64(s.bad_tensors, "reason.bad_tensors")::binary,
      Fields.s64(s.tensor || -1, "reason.tensor")::binary,
      Fields.s64(s.tensor_before || -1, "reason.tensor_before")::binary,
      Fields.s64(s.rank || -1, "reason.rank")::binary,
      Fields.chars(s.message, 512, "reason.message")::binary,
      0::little-320
    >>
  end

  @doc "The bytes of the longest text that a field holds."
  def longest(:message), do: 511
end

defmodule GradScaler.Entry do
  @moduledoc false
  alias GradScaler.{Constants, Fields}

  defstruct key: "",
            kind: :unused,
            flags: 0,
            value: 0.0,
            integer: 0,
            text: ""

  @type t :: %__MODULE__{
          key: binary,
          kind: atom | integer,
          flags: integer,
          value: GradScaler.real(),
          integer: integer,
          text: binary
        }

  @doc "The struct that a binary of the library holds."
  @spec decode(binary) :: t
  def decode(<<
        key::binary-size(160),
        kind::little-unsigned-32,
        flags::little-unsigned-32,
        value::binary-size(8),
        integer::little-signed-64,
        text::binary-size(56),
        0::128
      >>) do
    %__MODULE__{
      key: Fields.string(key),
      kind: Constants.name(:entry_kind, kind),
      flags: flags,
      value: Fields.real(value),
      integer: integer,
      text: Fields.string(text)
    }
  end

  def decode(other) do
    Fields.refuse("entry", other, "256 bytes, the reserved ones 0")
  end

  @doc "The binary that the library reads; raises `ArgumentError` naming a field that cannot be."
  @spec encode(t) :: binary
  def encode(%__MODULE__{} = s) do
    <<
      Fields.chars(s.key, 160, "entry.key")::binary,
      Fields.named(:entry_kind, s.kind, "entry.kind", &Fields.u32/2)::binary,
      Fields.u32(s.flags, "entry.flags")::binary,
      Fields.f64(s.value, "entry.value")::binary,
      Fields.s64(s.integer, "entry.integer")::binary,
      Fields.chars(s.text, 56, "entry.text")::binary,
      0::little-128
    >>
  end

  @doc "The bytes of the longest text that a field holds."
  def longest(:key), do: 159
  def longest(:text), do: 55
end

defmodule GradScaler.Note do
  @moduledoc false
  alias GradScaler.{Constants, Fields}

  defstruct kind: 0,
            flags: 0,
            entry: 0,
            value: 0.0,
            field: "",
            value_start: 0,
            value_length: 0,
            message: ""

  @type t :: %__MODULE__{
          kind: atom | integer,
          flags: integer,
          entry: integer,
          value: GradScaler.real(),
          field: binary,
          value_start: integer,
          value_length: integer,
          message: binary
        }

  @doc "The struct that a binary of the library holds."
  @spec decode(binary) :: t
  def decode(<<
        kind::little-unsigned-32,
        flags::little-unsigned-32,
        entry::little-signed-64,
        value::binary-size(8),
        field::binary-size(32),
        value_start::little-unsigned-32,
        value_length::little-unsigned-32,
        message::binary-size(432),
        0::128
      >>) do
    %__MODULE__{
      kind: Constants.name(:note_kind, kind),
      flags: flags,
      entry: entry,
      value: Fields.real(value),
      field: Fields.string(field),
      value_start: value_start,
      value_length: value_length,
      message: Fields.string(message)
    }
  end

  def decode(other) do
    Fields.refuse("note", other, "512 bytes, the reserved ones 0")
  end

  @doc "The binary that the library reads; raises `ArgumentError` naming a field that cannot be."
  @spec encode(t) :: binary
  def encode(%__MODULE__{} = s) do
    <<
      Fields.named(:note_kind, s.kind, "note.kind", &Fields.u32/2)::binary,
      Fields.u32(s.flags, "note.flags")::binary,
      Fields.s64(s.entry, "note.entry")::binary,
      Fields.f64(s.value, "note.value")::binary,
      Fields.chars(s.field, 32, "note.field")::binary,
      Fields.u32(s.value_start, "note.value_start")::binary,
      Fields.u32(s.value_length, "note.value_length")::binary,
      Fields.chars(s.message, 432, "note.message")::binary,
      0::little-128
    >>
  end

  @doc "The bytes of the longest text that a field holds."
  def longest(:field), do: 31
  def longest(:message), do: 431
end

defmodule GradScaler.FormatKey do
  @moduledoc false
  alias GradScaler.{Constants, Fields}

  defstruct key: "",
            field: "",
            uses: [],
            flags: 0

  @type t :: %__MODULE__{
          key: binary,
          field: binary,
          uses: [atom | integer],
          flags: integer
        }

  @doc "The struct that a binary of the library holds."
  @spec decode(binary) :: t
  def decode(<<
        key::binary-size(64),
        field::binary-size(32),
        uses::little-unsigned-32,
        flags::little-unsigned-32,
        0::64
      >>) do
    %__MODULE__{
      key: Fields.string(key),
      field: Fields.string(field),
      uses: Constants.names(:key_use, uses),
      flags: flags
    }
  end

  def decode(other) do
    Fields.refuse("format_key", other, "112 bytes, the reserved ones 0")
  end

  @doc "The binary that the library reads; raises `ArgumentError` naming a field that cannot be."
  @spec encode(t) :: binary
  def encode(%__MODULE__{} = s) do
    <<
      Fields.chars(s.key, 64, "format_key.key")::binary,
      Fields.chars(s.field, 32, "format_key.field")::binary,
      Fields.named(:key_use, s.uses, "format_key.uses", &Fields.u32/2)::binary,
      Fields.u32(s.flags, "format_key.flags")::binary,
      0::little-64
    >>
  end

  @doc "The bytes of the longest text that a field holds."
  def longest(:key), do: 63
  def longest(:field), do: 31
end

defmodule GradScaler.TensorOptions do
  @moduledoc false
  alias GradScaler.Constants

  defstruct want: [],
            policy: nil,
            clamp: 0.0,
            per_tensor: false,
            histogram: false,
            loss: nil

  @type t :: %__MODULE__{}

  @doc "The tuple that `GradScaler.Native` takes."
  @spec encode(t) :: tuple
  def encode(%__MODULE__{} = o) do
    {
      Constants.number(:want, o.want, "options.want"),
      o.policy,
      o.clamp,
      o.per_tensor,
      o.histogram,
      o.loss
    }
  end
end
