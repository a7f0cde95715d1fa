defmodule GradScaler.DeviceTest do
  # What is computed on a device has the bits of the host, and its memory is freed in whatever order. A CPU context is a
  # device, too; tests of CUDA run where there is a driver, such as the emulated one of tests/cuda.
  use ExUnit.Case, async: true

  alias GradScaler.{Constants, DeviceTensor, Native, Report}

  @dtypes Keyword.keys(Constants.all(:dtype))

  # Numbers of all sizes, NaN and Inf among them, in every dtype; lengths that fill no chunk and several.
  defp grads do
    :rand.seed(:exsss, {1, 2, 3})

    for {dtype, index} <- Enum.with_index(@dtypes), count <- [0, 1, 7, 70_000], into: %{} do
      size = Native.dtype_size(Constants.all(:dtype)[dtype])
      {{dtype, count, index}, {dtype, :rand.bytes(size * count)}}
    end
  end

  defp good,
    do: %{
      a: {:f16, :binary.copy(<<2.0::little-float-16>>, 300)},
      b: [{:f32, <<4.0::little-float-32>>}]
    }

  defp on(kind), do: GradScaler.on_device(GradScaler.new("none"), kind)

  defp bits(report),
    do: {Report.encode(report), report.per_tensor, report.paths, report.histogram}

  for {name, kind, tag} <- [{"threads", {:cpu, 2}, :cpu}, {"CUDA", :cuda, :cuda}] do
    describe name do
      @describetag tag
      @describetag kind: kind

      setup context, do: {:ok, device: on(context.kind)}

      test "a tree comes back as it was, integers and empty tensors too", %{device: device} do
        assert GradScaler.device_get(GradScaler.device_put(grads(), device)) == grads()
        assert GradScaler.device_get(GradScaler.device_put([], device)) == []
        assert GradScaler.device_get([{:f32, ""}]) == [{:f32, ""}]
      end

      test "results and reports have the bits of the host", %{device: device} do
        grads = grads()
        on_device = GradScaler.device_put(grads, device)

        for {preset, options} <- [
              {"torch", []},
              {"fairseq", [want: [:amax, :underflow], histogram: true]},
              {"none", [type: :same, want: :norm]}
            ] do
          scaler = GradScaler.new(preset, init_scale: 1024.0)
          {expected, report} = GradScaler.unscale(grads, scaler, options)
          {results, on_device_report} = GradScaler.unscale(on_device, scaler, options)
          assert bits(on_device_report) == bits(report)
          assert GradScaler.device_get(results) == expected

          options = Keyword.delete(options, :type)

          assert bits(GradScaler.measure(on_device, scaler, options)) ==
                   bits(GradScaler.measure(grads, scaler, options))
        end

        refute GradScaler.finite?(on_device)
        scaler = GradScaler.new("torch")
        {clamped, report} = GradScaler.unscale(on_device, scaler, clamp: 1.0e-3)
        {expected, host} = GradScaler.unscale(grads, scaler, clamp: 1.0e-3)
        assert {GradScaler.device_get(clamped), bits(report)} == {expected, bits(host)}
      end

      test "losses are scaled, and trees cast", %{device: device} do
        scaler = GradScaler.new("torch")
        tree = GradScaler.device_put(good(), device)
        scaled = GradScaler.device_get(GradScaler.scale_loss(tree, scaler))
        assert scaled == GradScaler.scale_loss(good(), scaler)
        cast = GradScaler.device_get(GradScaler.cast_params(tree, :f8_e5m2, clamp: 3.0))
        assert cast == GradScaler.cast_params(good(), :f8_e5m2, clamp: 3.0)
      end

      test "micro-batches are added to sums, which stay what they were", %{device: device} do
        scaler = GradScaler.new("static", init_scale: 2.0)
        {sums, _} = GradScaler.unscale(GradScaler.device_put(good(), device), scaler)
        before = GradScaler.device_get(sums)

        {added, report} =
          GradScaler.unscale_accumulate(sums, GradScaler.device_put(good(), device), scaler)

        {expected, host} = GradScaler.unscale_accumulate(before, good(), scaler)
        assert {GradScaler.device_get(added), bits(report)} == {expected, bits(host)}
        assert GradScaler.device_get(sums) == before

        bad = GradScaler.device_put(%{good() | b: [{:f32, <<0x7FC00000::little-32>>}]}, device)
        {kept, report} = GradScaler.unscale_accumulate(added, bad, scaler)

        assert {GradScaler.device_get(kept), GradScaler.overflows(report)} ==
                 {expected, [[:b, 0]]}
      end

      test "what cannot be is refused in words", %{device: device} do
        tree = GradScaler.device_put(good(), device)
        other = GradScaler.device_put(good(), on({:cpu, 1}))
        torch = GradScaler.new("torch")
        infinite = GradScaler.set_scale(torch, :infinity)

        cases = [
          {~r/factor.scale is inf: it must be finite/,
           fn -> GradScaler.unscale(tree, infinite) end},
          {~r/\[:b\]\[0\] is not where those before it are/,
           fn -> GradScaler.unscale(%{tree | b: good().b}, torch) end},
          {~r/\[1\]\[:a\] is not where those before it are/,
           fn -> GradScaler.unscale([tree, other], torch) end},
          {~r/sums are not where the gradients are/,
           fn -> GradScaler.unscale_accumulate(good(), tree, torch) end},
          {~r/\[:a\] is on a device already/, fn -> GradScaler.device_put(tree, device) end},
          {~r/^the result of \[:a\] cannot be :complex64/,
           fn -> GradScaler.cast_params(tree, :complex64) end},
          {~r/the tree is 5: expected/, fn -> GradScaler.device_put(5, device) end}
        ]

        for {message, call} <- cases, do: assert_raise(ArgumentError, message, call)

        assert :ok = GradScaler.device_free(tree)
        assert :ok = GradScaler.device_free(tree)

        assert_raise ArgumentError, ~r/\[:a\] is memory that was freed/, fn ->
          GradScaler.unscale(tree, torch)
        end

        assert_raise ArgumentError, ~r/memory that was freed/, fn ->
          GradScaler.device_get(tree)
        end
      end

      test "the steps of a policy are those of the host", %{device: device} do
        exec = device.device
        {:ok, policy} = Native.policy_preset("torch")
        {:ok, state} = Native.state_init(nil, policy)
        assert Native.state_init(exec, policy) == {:ok, state}

        report = Report.encode(GradScaler.measure(good(), GradScaler.new("torch"), want: :norm))
        factor = binary_part(state, 0, 32)

        for call <- [
              &Native.state_update(&1, policy, state, report),
              &Native.state_init_from(&1, policy, state),
              &Native.factor_multiply(&1, factor, 3.0),
              &Native.factor_clip_grad_norm(&1, factor, report, 0.5),
              &Native.factor_clip_grad_norm(&1, nil, report, 0.5),
              &Native.report_merge(&1, :binary.copy(report, 1000), 0, policy),
              &Native.report_merge(&1, "", 1, nil)
            ] do
          assert {:ok, binary} = call.(nil)
          assert call.(exec) == {:ok, binary}
        end
      end

      test "what does not fit into memory is an error of its own", %{device: device} do
        error =
          assert_raise GradScaler.Error, fn ->
            DeviceTensor.allocate(device.device, f32: 2 ** 60)
          end

        assert {error.status, error.details.name != nil} == {:memory, true}
      end

      test "ranges outside of memory are refused", %{device: device} do
        {:ok, memory} = Native.memory_create(device.device, 8)

        for result <- [
              Native.memory_write(memory, [{5, "abcd"}]),
              Native.memory_write(memory, [{0, "ab"}, {2 ** 64 - 1, "a"}]),
              Native.memory_write(memory, [{0, memory, 4, 5}]),
              Native.memory_write(memory, [{0, "ab"} | :end]),
              Native.memory_read(memory, [{0, 2 ** 63}]),
              Native.memory_read(memory, [{9, 0}]),
              Native.measure(device.device, nil, [{1, memory, 4, 8}], nil),
              Native.measure(device.device, nil, [{1, memory, 2 ** 64 - 4, 8}], nil),
              Native.measure(nil, nil, [{1, memory, 0, 8}], nil),
              Native.scale(
                device.device,
                nil,
                [{1, memory, 0, 4}, {1, memory, 4, 4}],
                [{1, memory, 0, 4}, 1],
                nil
              )
            ] do
          assert {:error, %{message: message}} = result
          assert message != ""
        end

        assert :ok = Native.memory_write(memory, [{0, "abcdefgh"}, {2, memory, 5, 3}])
        assert {:ok, ["abfghfgh", "", "h"]} = Native.memory_read(memory, [{0, 8}, {8, 0}, {7, 1}])
      end

      test "many processes share a device", %{device: device} do
        scaler = GradScaler.new("torch")
        {expected, report} = GradScaler.unscale(grads(), scaler)

        1..8
        |> Task.async_stream(
          fn _ ->
            for _ <- 1..3 do
              {results, on_device} =
                GradScaler.unscale(GradScaler.device_put(grads(), device), scaler)

              assert {GradScaler.device_get(results), bits(on_device)} == {expected, bits(report)}
            end
          end,
          max_concurrency: 8,
          timeout: 60_000
        )
        |> Enum.each(fn {:ok, _} -> :ok end)
      end

      test "memory outlives the device's last term, and killed processes harm nobody", context do
        kind = context.kind

        for delay <- 0..20 do
          victim =
            spawn(fn ->
              device = on(kind)

              for _ <- 1..100,
                  do: GradScaler.unscale(GradScaler.device_put(good(), device), GradScaler.new())
            end)

          Process.sleep(div(delay, 4))
          Process.exit(victim, :kill)
        end

        tree = Task.await(Task.async(fn -> GradScaler.device_put(good(), on(kind)) end), 60_000)
        :erlang.garbage_collect()
        assert GradScaler.device_get(tree) == good()
      end
    end
  end

  test "the driver is not started before it is asked for" do
    code =
      "GradScaler.update(GradScaler.new(), true); IO.write(File.read!(\"/proc/self/maps\") =~ \"libcuda\")"

    arguments = ["-pa", Mix.Project.compile_path(), "-e", code]
    assert {"false", 0} = System.cmd("elixir", arguments)
  end

  test "without a driver there is an error that says why" do
    error = assert_raise GradScaler.Error, fn -> on({:cuda, 99}) end
    assert error.status in [:unavailable, :value]
    assert error.message =~ ~r/driver|device/
  end

  test "a scaler without a device leaves trees where they are, and takes that of another" do
    scaler = GradScaler.new("torch")
    assert GradScaler.device_put(good(), scaler) == good()
    other = on({:cpu, 1})
    shared = GradScaler.on_device(scaler, other)
    assert shared == %{scaler | device: other.device}
    grads = [GradScaler.device_put(good(), shared), GradScaler.device_put(good(), other)]
    assert GradScaler.finite?(grads)
    assert GradScaler.load(GradScaler.save(shared)) == scaler
  end

  describe "Nx" do
    @describetag :nx
    @compile {:no_warn_undefined, [Nx, Nx.Defn]}

    test "tensors come back with shape and names, and integers stay" do
      device = on({:cpu, 1})
      tree = %{w: Nx.tensor([[2.0, 4.0]], type: :f16, names: [:x, :y]), n: Nx.tensor([3])}

      {unscaled, _} =
        tree |> GradScaler.device_put(device) |> GradScaler.unscale(GradScaler.new("none"))

      assert GradScaler.device_get(unscaled) == %{
               tree
               | w: Nx.tensor([[2.0, 4.0]], names: [:x, :y])
             }

      assert_raise ArgumentError, ~r/\[:w\] has the shape {1, 2}, its sum {2, 1}/, fn ->
        sums = GradScaler.device_put(%{tree | w: Nx.tensor([[0.0], [0.0]])}, device)

        GradScaler.unscale_accumulate(
          sums,
          GradScaler.device_put(tree, device),
          GradScaler.new("none")
        )
      end

      assert_raise ArgumentError, ~r/the tensors are traced/, fn ->
        Nx.Defn.jit(&GradScaler.device_put(&1, device)).(Nx.tensor(1.0))
      end
    end
  end
end
