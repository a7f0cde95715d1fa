defmodule GradScaler.CheckpointTest do
  use ExUnit.Case, async: true
  @compile {:no_warn_undefined, [Axon.LossScale, Nx]}
  import GradScaler.Wording
  alias GradScaler.{Checkpoint, Report}

  doctest GradScaler.Checkpoint, except: [read: 3]

  defmodule LossScaler do
    rules = [growth_factor: 2.0, backoff_factor: 0.5, growth_interval: 100, min_scale: 1.0]
    defstruct [scale: 2048.0, counter: 3] ++ rules
  end

  @torch %{"scale" => 2048.0, "growth_interval" => 100, "_growth_tracker" => 3}

  # That a checkpoint was read as @torch.
  defp read_as_torch(checkpoint, scaler \\ nil, options \\ []) do
    {scaler, _notes} = Checkpoint.read(checkpoint, scaler, options)
    assert {GradScaler.loss_scale(scaler), GradScaler.state(scaler).good_steps} == {2048.0, 3}
    assert GradScaler.policy(scaler).growth_interval == 100
  end

  test "a checkpoint may be a map, a keyword list, a struct, nested, with more in it" do
    for checkpoint <- [
          @torch,
          %{epoch: 3, scaler: @torch, weights: {:f32, <<0.0::float-32>>}},
          [scale: 2048.0, growth_interval: 100, _growth_tracker: 3],
          %{scaler: [@torch], text: String.duplicate("x", 1000)},
          %LossScaler{},
          %{"loss_scaler0" => %{loss_scale: 2048, unskipped: 3}}
        ],
        do: read_as_torch(checkpoint, GradScaler.new("torch", growth_interval: 100))
  end

  test "without a scaler the framework's rules apply, else the scaler's own with what the checkpoint has" do
    for {scaler, preset} <- [{nil, "torch"}, {GradScaler.new(), "recommended"}] do
      {read, notes} = Checkpoint.read(@torch, scaler)
      expected = GradScaler.new(preset, growth_interval: 100)
      assert GradScaler.policy(read) == GradScaler.policy(expected)
      assert :missing in Enum.map(notes, & &1.kind)
      assert Enum.all?(notes, &(is_binary(&1.message) and &1.message != ""))
    end
  end

  test "what is written is read again, and goes on equally" do
    for format <- Map.keys(Checkpoint.formats()),
        format not in ~w(oneflow guided_diffusion) do
      preset = if is_map_key(GradScaler.presets(), format), do: format, else: "torch"
      good = %Report{kind: :tensors, measured: [:norm]}
      reports = [good, good, %{good | overflow: true}, good]
      new = GradScaler.new(preset, growth_interval: 3)
      scaler = Enum.reduce(reports, new, &GradScaler.update(&2, &1))
      {checkpoint, _notes} = Checkpoint.write(scaler, format)
      {again, _notes} = Checkpoint.read(checkpoint, scaler, format: format)
      assert again.policy == scaler.policy
      assert GradScaler.loss_scale(again) == GradScaler.loss_scale(scaler)
      if format == "gradscaler", do: assert(again == scaler)
    end
  end

  test "an integer that no double holds is written and read as it is" do
    overflows = 2 ** 60 + 1
    endless = GradScaler.new("torch", growth_interval: 2 ** 64 - 1)
    scaler = GradScaler.put_state(endless, total_overflows: overflows)
    {checkpoint, []} = Checkpoint.write(scaler, "gradscaler")
    assert overflows in Map.values(checkpoint) and (2 ** 64 - 1) in Map.values(checkpoint)
    assert {^scaler, _notes} = Checkpoint.read(checkpoint, scaler, format: "gradscaler")
  end

  test "notes are as many as there are" do
    settings = Map.new(1..1000, &{"name#{&1}", &1})
    {_scaler, notes} = Checkpoint.settings(settings, "torch")
    assert Enum.count(notes, &(&1.kind == :ignored)) == 1000
  end

  test "numbers have the types that loaders expect" do
    for {format, expected} <- [
          {"torch", %{"scale" => 65536.0, "growth_interval" => 2000, "_growth_tracker" => 0}},
          {:paddle_dygraph, %{"use_dynamic_loss_scaling" => true}},
          {"apex", %{"loss_scaler0" => %{"loss_scale" => 65536.0, "unskipped" => 0}}}
        ] do
      {checkpoint, []} = Checkpoint.write(GradScaler.new(format), format)
      assert Map.take(checkpoint, Map.keys(expected)) === expected
    end
  end

  test "settings of a framework, into its rules or others" do
    {scaler, []} = Checkpoint.settings([init_scale: 8, period: 5], "axon")
    assert scaler == GradScaler.new("axon", init_scale: 8, growth_interval: 5)
    settings = %{growth_intervall: 3}
    {scaler, [note]} = Checkpoint.settings(settings, "torch", preset: "recommended")
    assert {note.kind, scaler} == {:ignored, GradScaler.new()}
  end

  test "what cannot be is refused, and named" do
    many = Map.new(1..70_000, &{"#{&1}.scale", 1})
    long = String.duplicate("\u00e9", 79)

    for {checkpoint, options, words} <- [
          {%{"a" => %{@torch | "scale" => :nan}}, [], "a.scale " <> wording("is nan")},
          {%{@torch | "growth_interval" => "x"}, [], "growth_interval " <> wording("is \"x\"")},
          {%{}, [], "entries " <> wording("are none: a scaler that is switched off saves none")},
          {%{"lr" => 1}, [], " (GradScaler.Checkpoint.formats/0 lists the formats)"},
          {@torch, [format: "pytorch"], " (GradScaler.Checkpoint.formats/0 lists the formats)"},
          {@torch, [format: long], "format " <> wording(~s(is "#{long}", which is none))},
          {@torch, [prefix: long], "prefix " <> wording(~s(is "#{long}": no key begins with it))},
          {many, [],
           "the number of its entries " <>
             wording("is 70000: it must be at most 65536: pass only")},
          {3, [], "a map, a keyword list or a struct"},
          {@torch, [prefix: 3], "prefix is 3"}
        ],
        do: refused(words, fn -> Checkpoint.read(checkpoint, nil, options) end)

    scaler = GradScaler.new()

    refused("format " <> wording("is \"oneflow\", which saves no state"), fn ->
      Checkpoint.write(scaler, "oneflow")
    end)

    refused(":texts or :atoms", fn -> Checkpoint.write(scaler, "torch", keys: "x") end)

    refused("init_scale " <> wording("is -1"), fn ->
      Checkpoint.settings([init_scale: -1], "torch")
    end)

    preset = [preset: "pytorch"]

    refused("preset " <> wording("is \"pytorch\""), fn ->
      Checkpoint.settings([], "torch", preset)
    end)
  end

  test "a caller who named a format is not told about formats" do
    for {checkpoint, options} <- [{%{"lr" => 1}, [format: "torch"]}, {%{}, []}] do
      error = assert_raise(ArgumentError, fn -> Checkpoint.read(checkpoint, nil, options) end)
      refute error.message =~ "formats/0"
    end
  end

  defp refused(words, call) do
    error = assert_raise(ArgumentError, call)
    assert error.message =~ words
    assert String.valid?(error.message)
  end

  test "what is no number is refused where one is read, and passed over elsewhere" do
    values = [{[4, 5], "a list"}, {%{a: 1}, "a map"}]

    for {value, what} <- values ++ [{{:f32, 1}, "no number"}, {<<255>>, "a binary"}] do
      checkpoint = %{weights: %{"scale" => value}, scaler: %{@torch | "_growth_tracker" => value}}
      refused("scaler._growth_tracker is #{what}: it must", fn -> Checkpoint.read(checkpoint) end)
      settings = fn -> Checkpoint.settings([init_scale: value], "torch") end
      refused("init_scale is #{what}: it must be " <> wording("a number"), settings)
      read_as_torch(%{checkpoint | scaler: @torch})
    end
  end

  test "a scaler's key that is too long is refused, a weight's is passed over" do
    place = String.duplicate("p", 145)

    # The scale still fits, its count does not.
    for {options, count} <- [
          {[], "_growth_tracker"},
          {[prefix: place], "_growth_tracker"},
          {[], "in/num_good_steps_3"},
          {[], "_hysterisis_tracker"}
        ] do
      message =
        "#{place}.#{count} is a key of #{146 + byte_size(count)} bytes: at most 159 are read, " <>
          "so pass what is below its place"

      checkpoint = %{place => %{"scale" => 8.0, count => 3}}
      assert_raise ArgumentError, message, fn -> Checkpoint.read(checkpoint, nil, options) end
    end

    numbers = %{
      "attention.weight" => 1.0,
      "_growth_tracker" => [1.0, 2.0],
      "_growth_tracker3" => 1
    }

    weights = %{place => numbers}
    read_as_torch(%{"scaler" => @torch, "weights" => weights}, GradScaler.new("torch"))
    named = [prefix: "scaler", format: "torch"]
    read_as_torch(%{"scaler" => @torch, place => @torch}, nil, named)

    long = String.duplicate("s", 160)
    settings = &Checkpoint.settings(&1, "torch")
    refused("#{long} is a key of 160 bytes", fn -> settings.(%{long => 1}) end)
    assert {_scaler, []} = settings.(%{model: %{long => 1}})
    refused("is a key with a zero", fn -> settings.(%{"init_scale\0" => 1}) end)
  end

  test "a text that does not fit is refused where one is read, and noted where none is" do
    [x, acute] = for letter <- ["x", "\u00e9"], do: &String.duplicate(letter, &1)

    for {text, shown} <- [
          {x.(55), x.(55)},
          {"dynamic" <> x.(49), "dynamic" <> x.(45) <> "..."},
          {acute.(32), acute.(26) <> "..."}
        ] do
      words = ~s(is "#{shown}": it must be a number or "dynamic")
      settings = &Checkpoint.settings(&1, "cerebras")
      refused("loss_scale " <> wording(words), fn -> settings.(loss_scale: text) end)
      assert {_scaler, [%{kind: :ignored}]} = settings.(color: text)
    end
  end

  test "an error says a long key once, and whole" do
    place = "p" <> String.duplicate("\u00e9", 75)
    torch = [format: "torch", prefix: place]

    for {value, refused} <- [
          {-1, wording("is -1: it must be a scale: 0 or above")},
          {nil, wording("is empty: it must be a number")},
          {[1.0, 2.0], "is a list: it must be " <> wording("a number")}
        ] do
      read = fn -> Checkpoint.read(%{place => %{"scale" => value}}, nil, torch) end
      error = assert_raise ArgumentError, read
      assert ["", rest] = String.split(error.message, place)
      assert rest =~ ".scale " <> refused
      assert String.valid?(rest)
    end
  end

  test "notes name rules and flags as Elixir does" do
    rules = [floor_rule: :reject, guard_flags: [:clip, :inclusive], guard_norm: 3.0]
    scaler = GradScaler.new("recommended", rules)
    {_torch, lost} = Checkpoint.write(scaler, "torch")
    assert Enum.find(lost, &(&1.field == "guard_norm")).value == 3.0
    {ours, []} = Checkpoint.write(scaler, "gradscaler")
    place = "p" <> String.duplicate("\u00e9", 60)
    {_scaler, empty} = Checkpoint.read(%{place => Map.put(ours, "floor_rule", nil)}, scaler)

    for {notes, field, before, value, behind} <- [
          {lost, "floor_rule", "floor_rule is ", ":reject", ", which the format torch cannot"},
          {lost, "guard_flags", "guard_flags is ", "[:clip, :inclusive]", ", which the format"},
          {empty, "floor_rule", ~s("#{place}.floor_rule" is empty: floor_rule stays ), ":reject",
           ", as in the policy"}
        ] do
      note = Enum.find(notes, &(&1.field == field))
      assert note.value_start == byte_size(before)
      assert binary_part(note.message, note.value_start, note.value_length) == value
      assert note.message =~ wording(before <> value <> behind)
      assert String.valid?(note.message)
    end
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
