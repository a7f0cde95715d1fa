defmodule GradScaler.CheckpointTest do
  use ExUnit.Case, async: true
  @compile {:no_warn_undefined, [Axon.LossScale, Nx]}
  alias GradScaler.{Checkpoint, Policy, Report}

  doctest GradScaler.Checkpoint

  defmodule LossScaler do
    defstruct scale: 2048.0,
              counter: 3,
              growth_factor: 2.0,
              backoff_factor: 0.5,
              growth_interval: 100,
              min_scale: 1.0
  end

  @torch %{"scale" => 2048.0, "growth_interval" => 100, "_growth_tracker" => 3}

  defp found({scaler, _notes}),
    do:
      {GradScaler.loss_scale(scaler), GradScaler.state(scaler).good_steps,
       GradScaler.policy(scaler).growth_interval}

  test "a checkpoint may be a map, a keyword list, a struct, nested, with more in it" do
    for checkpoint <- [
          @torch,
          %{epoch: 3, scaler: @torch, weights: {:f32, <<0.0::float-32>>}},
          [scale: 2048.0, growth_interval: 100, _growth_tracker: 3],
          %{scaler: [@torch], text: String.duplicate("x", 1000)},
          %LossScaler{},
          %{"loss_scaler0" => %{loss_scale: 2048, unskipped: 3}}
        ] do
      assert found(Checkpoint.read(checkpoint, GradScaler.new("torch", growth_interval: 100))) ==
               {2048.0, 3, 100}
    end
  end

  test "without a scaler the rules are those of the framework, else its own with what the checkpoint has" do
    {alone, notes} = Checkpoint.read(@torch, nil, format: "torch")
    {recommended, _notes} = Checkpoint.read(@torch, GradScaler.new())

    assert GradScaler.policy(alone) ==
             GradScaler.policy(GradScaler.new("torch", growth_interval: 100))

    assert GradScaler.policy(recommended) ==
             GradScaler.policy(GradScaler.new(growth_interval: 100))

    assert :missing in Enum.map(notes, & &1.kind)
    assert Enum.all?(notes, &(is_binary(&1.message) and &1.message != ""))
  end

  test "what is written is read again, and goes on equally" do
    for format <- Map.keys(Checkpoint.formats()),
        format not in ~w(oneflow guided_diffusion openseq2seq_logmax) do
      preset = if is_map_key(GradScaler.presets(), format), do: format, else: "torch"

      report = %Report{kind: :tensors, measured: [:norm, :amax], amax: 1.0}
      reports = for overflow <- [false, false, true, false], do: %{report | overflow: overflow}

      scaler =
        Enum.reduce(
          reports,
          GradScaler.new(preset, growth_interval: 3),
          &GradScaler.update(&2, &1)
        )

      {checkpoint, _notes} = Checkpoint.write(scaler, format)
      {again, _notes} = Checkpoint.read(checkpoint, scaler, format: format)
      assert GradScaler.policy(again) == GradScaler.policy(scaler)
      assert GradScaler.loss_scale(again) == GradScaler.loss_scale(scaler)
      if format == "gradscaler", do: assert(again == scaler)
    end
  end

  test "an integer that no double holds is written and read as it is" do
    for overflows <- [2 ** 53 + 1, 2 ** 61 + 1] do
      scaler = GradScaler.put_state(GradScaler.new("torch"), total_overflows: overflows)
      {checkpoint, []} = Checkpoint.write(scaler, "gradscaler")
      assert overflows in Map.values(checkpoint)
      assert {^scaler, _notes} = Checkpoint.read(checkpoint, scaler, format: "gradscaler")
    end
  end

  test "notes are as many as there are" do
    settings = Map.new(1..1000, &{"name#{&1}", &1})
    {_scaler, notes} = Checkpoint.settings(settings, "torch")
    assert Enum.count(notes, &(&1.kind == :ignored)) == 1000
  end

  test "numbers have the types that loaders expect, and keys can be atoms" do
    {torch, notes} = Checkpoint.write(GradScaler.new("torch"), "torch", keys: :atoms)

    assert torch == %{
             scale: 65536.0,
             growth_factor: 2.0,
             backoff_factor: 0.5,
             growth_interval: 2000,
             _growth_tracker: 0
           }

    assert notes == []

    assert {%{"use_dynamic_loss_scaling" => true}, _} =
             Checkpoint.write(GradScaler.new("paddle_dygraph"), :paddle_dygraph)

    assert {%{"loss_scaler0" => %{"unskipped" => 0}}, _} =
             Checkpoint.write(GradScaler.new("apex"), "apex")
  end

  test "settings of a framework, into its rules or others" do
    settings = [init_scale: 8, period: 5, factor: 4]
    {scaler, []} = Checkpoint.settings(settings, "axon")

    assert %Policy{init_scale: 8.0, growth_interval: 5, growth_factor: 4.0} =
             GradScaler.policy(scaler)

    {scaler, [note]} = Checkpoint.settings(%{growth_intervall: 3}, "torch", preset: "recommended")

    assert {note.kind, GradScaler.policy(scaler)} ==
             {:ignored, GradScaler.policy(GradScaler.new())}
  end

  test "what cannot be is refused, and named" do
    for {call, words} <- [
          {fn -> Checkpoint.read(%{"a" => %{@torch | "scale" => :nan}}) end, "a.scale is nan"},
          {fn -> Checkpoint.read(%{@torch | "growth_interval" => "x"}) end,
           "growth_interval is \"x\""},
          {fn -> Checkpoint.read(%{}) end, "switched off saves none"},
          {fn -> Checkpoint.read(%{"lr" => 1}) end, "GradScaler.Checkpoint.formats/0"},
          {fn -> Checkpoint.read(@torch, nil, format: "pytorch") end, "format is \"pytorch\""},
          {fn -> Checkpoint.read(Map.new(1..70_000, &{to_string(&1), 1})) end,
           "the number of its entries is 70000: it must be at most 65536: hand over those of the scaler"},
          {fn -> Checkpoint.read(3) end, "a map, a keyword list or a struct"},
          {fn -> Checkpoint.read(@torch, nil, prefix: 3) end, "prefix is 3"},
          {fn -> Checkpoint.write(GradScaler.new(), "oneflow") end, "saves no state"},
          {fn -> Checkpoint.write(GradScaler.new(), "torch", keys: "x") end, ":texts or :atoms"},
          {fn -> Checkpoint.settings([init_scale: -1], "torch") end, "init_scale is -1"},
          {fn -> Checkpoint.settings([], "torch", preset: "pytorch") end, "preset is \"pytorch\""}
        ] do
      assert_raise ArgumentError, ~r/#{Regex.escape(words)}/, call
    end
  end

  test "what is no number is refused where one is read, and passed over elsewhere" do
    for {value, what} <- [
          {[4, 5], "a list"},
          {%{a: 1}, "a map"},
          {{:f32, 1}, "no number"},
          {<<255>>, "a binary"}
        ] do
      checkpoint = %{weights: %{"scale" => value}, scaler: %{@torch | "_growth_tracker" => value}}

      assert_raise ArgumentError,
                   "scaler._growth_tracker is #{what}: it must be a number",
                   fn -> Checkpoint.read(checkpoint) end

      assert_raise ArgumentError, "init_scale is #{what}: it must be a number", fn ->
        Checkpoint.settings([init_scale: value], "torch")
      end

      assert found(Checkpoint.read(%{checkpoint | scaler: @torch})) == {2048.0, 3, 100}
    end
  end

  test "a key of a scaler that is too long is refused, that of a weight passed over" do
    place = String.duplicate("p", 145)

    # The scale still fits, its count does not.
    for {options, count} <- [
          {[], "_growth_tracker"},
          {[prefix: place], "_growth_tracker"},
          {[], "in/num_good_steps_3"}
        ] do
      assert_raise ArgumentError,
                   "#{place}.#{count} is a key of #{146 + byte_size(count)} bytes: at most 159 " <>
                     "are read, so pass what is below its place",
                   fn ->
                     Checkpoint.read(%{place => %{"scale" => 8.0, count => 3}}, nil, options)
                   end
    end

    weights = %{place => %{"attention.weight" => 1.0, "_growth_tracker" => [1.0, 2.0]}}
    checkpoint = %{"scaler" => @torch, "weights" => weights}
    assert found(Checkpoint.read(checkpoint, GradScaler.new("torch"))) == {2048.0, 3, 100}

    named =
      Checkpoint.read(%{"scaler" => @torch, place => @torch}, nil,
        prefix: "scaler",
        format: "torch"
      )

    assert found(named) == {2048.0, 3, 100}

    long = String.duplicate("s", 160)

    assert_raise ArgumentError, ~r/^#{long} is a key of 160 bytes/, fn ->
      Checkpoint.settings(%{long => 1}, "torch")
    end

    assert {_scaler, []} = Checkpoint.settings(%{model: %{long => 1}}, "torch")

    assert_raise ArgumentError, ~r/is a key with a zero/, fn ->
      Checkpoint.settings(%{"init_scale\0" => 1}, "torch")
    end
  end

  test "a text that does not fit is refused where one is read, and noted where none is" do
    for {text, shown} <- [
          {String.duplicate("x", 55), String.duplicate("x", 55)},
          {"dynamic" <> String.duplicate("x", 49),
           "dynamic" <> String.duplicate("x", 45) <> "..."},
          {String.duplicate("\u00e9", 32), String.duplicate("\u00e9", 26) <> "..."}
        ] do
      assert_raise ArgumentError,
                   ~s(loss_scale is "#{shown}": it must be a number or "dynamic"),
                   fn ->
                     Checkpoint.settings([loss_scale: text], "cerebras")
                   end

      {_scaler, notes} = Checkpoint.settings([color: text], "cerebras")
      assert [%{kind: :ignored}] = notes
    end
  end

  test "an error says a long key once" do
    place = "p" <> String.duplicate("\u00e9", 45)

    assert_raise ArgumentError, "#{place}.scale is -1: it must be a scale: 0 or above", fn ->
      Checkpoint.read(%{place => %{"scale" => -1}}, nil, format: "torch", prefix: place)
    end
  end

  test "notes name rules and say the important first" do
    {_scaler, notes} = Checkpoint.read(Map.put(@torch, "color", 3), GradScaler.new())
    assert notes |> Enum.map(& &1.kind) |> Enum.dedup() == [:format, :ignored, :missing]

    assert Enum.find(notes, &(&1.field == "ceiling_rule")).message =~
             "it is :clamp_unless_past, as"
  end

  describe "Axon's own scaler" do
    @describetag :axon
    @settings [init_scale: 1024.0, period: 3]

    defp steps(seed), do: for(i <- 1..30, do: rem(i * seed, 11) in [3, 4])

    defp theirs(state, steps) do
      {_init, _scale, unscale} = Axon.LossScale.dynamic(@settings)

      Enum.map_reduce(steps, state, fn overflow, state ->
        grads = if overflow, do: Nx.tensor([1.0, :infinity]), else: Nx.tensor([1.0, 2.0])
        {_grads, next} = unscale.(grads, state)
        {Nx.to_number(state.loss_scale), next}
      end)
    end

    defp ours(scaler, steps) do
      Enum.map_reduce(steps, scaler, &{GradScaler.loss_scale(&2), GradScaler.update(&2, &1)})
    end

    test "goes on from ours, and ours from its" do
      {init, _scale, _unscale} = Axon.LossScale.dynamic(@settings)
      {_scales, state} = theirs(init.(), steps(3))
      {scaler, _notes} = Checkpoint.settings(@settings, "axon")
      {scaler, _notes} = Checkpoint.read(state, scaler, format: "axon")
      {scales, scaler} = ours(scaler, steps(5))
      assert {^scales, state} = theirs(state, steps(5))

      {%{loss_scale: scale, counter: counter}, _notes} =
        Checkpoint.write(scaler, "axon", keys: :atoms)

      from_ours = %{loss_scale: Nx.tensor(scale, type: {:f, 32}), counter: Nx.tensor(counter)}
      {scales, _state} = theirs(state, steps(7))
      assert {^scales, _state} = theirs(from_ours, steps(7))
    end
  end
end
