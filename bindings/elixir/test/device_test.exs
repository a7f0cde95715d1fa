defmodule GradScaler.DeviceTest do
  # Results of a device have the bits of the host, and its memory is freed in whatever order. A CPU context is also a
  # device; tests of CUDA run if there is a driver, such as the emulated one of tests/cuda.
  use ExUnit.Case, async: true

  import GradScaler
  import GradScaler.Wording
  alias GradScaler.{Constants, DeviceTensor, Native, Report}

  @dtypes Constants.all(:dtype)

  # Numbers of all sizes, NaN and Inf among them, in every dtype; lengths that fill no chunk and several.
  defp grads do
    :rand.seed(:exsss, {1, 2, 3})

    for {dtype, number} <- @dtypes, count <- [0, 1, 7, 70_000], into: %{} do
      {{number, count}, {dtype, :rand.bytes(Native.dtype_size(number) * count)}}
    end
  end

  @good %{
    a: {:f16, :binary.copy(<<2.0::little-float-16>>, 300)},
    b: [{:f32, <<4.0::little-float-32>>}]
  }

  defp on(kind), do: on_device(new("none"), kind)

  # A tree or a report to compare, wherever it is.
  defp bits(%Report{} = report),
    do: {Report.encode(report), report.per_tensor, report.paths, report.histogram}

  defp bits({tree, %Report{} = report}), do: {bits(tree), bits(report)}
  defp bits(tree), do: device_get(tree)

  for {name, kind, tag} <- [{"threads", {:cpu, 2}, :cpu}, {"CUDA", :cuda, :cuda}] do
    describe name do
      @describetag tag
      @describetag kind: kind

      setup context, do: {:ok, device: on(context.kind)}

      test "results and reports have the bits of the host", %{device: device} do
        torch = new("torch")
        fairseq = new("fairseq", init_scale: 1024.0)
        counts = [want: [:amax, :underflow], histogram: true, loss: :nan]
        tree = grads()
        on_device = device_put(tree, device)

        for call <- [
              &unscale(&1, torch),
              &unscale(&1, torch, clamp: 1.0e-3),
              &unscale(&1, fairseq, counts),
              &unscale(&1, new("none"), type: :same, want: :norm),
              &measure(&1, torch),
              &measure(&1, fairseq, counts),
              &scale_loss(&1, torch)
            ],
            do: assert(bits(call.(on_device)) == bits(call.(tree)))

        assert {device_get(on_device), finite?(on_device)} == {tree, false}
        assert device_get(device_put([], device)) == []
        cast = &cast_params(&1, :f8_e5m2, clamp: 3.0)
        assert bits(cast.(device_put(@good, device))) == cast.(@good)
      end

      test "micro-batches are added to sums, which stay what they were", %{device: device} do
        scaler = new("static", init_scale: 2.0)
        good = device_put(@good, device)
        {sums, _} = unscale(good, scaler)
        before = device_get(sums)

        {added, report} = unscale_accumulate(sums, good, scaler)
        {expected, _} = host = unscale_accumulate(before, @good, scaler)
        assert {bits({added, report}), device_get(sums)} == {bits(host), before}

        bad = device_put(%{@good | b: [{:f32, <<0x7FC00000::little-32>>}]}, device)
        {kept, report} = unscale_accumulate(added, bad, scaler)
        assert {device_get(kept), overflows(report)} == {expected, [[:b, 0]]}
      end

      test "the loss is there or on the host", %{device: device} do
        tree = device_put(@good, device)

        for {loss, expected} <- [
              {{:f16, <<0::16, 0x7C00::little-16>>}, :not_finite},
              {{:f64, <<1.0::little-float-64>>}, :finite},
              {[{:f32, <<0x7FC00000::little-32>>}, {:f16, <<0::16>>}], :not_finite},
              {[{:f32, <<0::32>>}, {:f16, <<0::16>>}], :finite}
            ],
            there <- [loss, device_put(loss, device)] do
          {_, report} = unscale(tree, new(), loss: there)
          assert {report.loss, skip?(report)} == {expected, expected == :not_finite}
          {sums, _} = unscale(tree, new("none"))
          assert {_, %{loss: ^expected}} = unscale_accumulate(sums, tree, new(), loss: there)
        end

        message = ~r/^options.loss is memory of another device/
        [other | _] = for kind <- [{:cpu, 1}], do: device_put({:f32, <<0::32>>}, on(kind))

        for grads <- [tree, @good],
            do: assert_raise(ArgumentError, message, fn -> measure(grads, new(), loss: other) end)
      end

      test "what cannot be is refused in words", %{device: device} do
        tree = device_put(@good, device)
        other = device_put(@good, on({:cpu, 1}))
        torch = new("torch")

        for {message, call} <- [
              {~r/factor.scale #{wording("is inf: it must be finite")}/,
               fn -> unscale(tree, set_scale(torch, :infinity)) end},
              {~r/\[:b\]\[0\] is not where those before it are/,
               fn -> unscale(%{tree | b: @good.b}, torch) end},
              {~r/\[1\]\[:a\] is not where those before it are/,
               fn -> unscale([tree, other], torch) end},
              {~r/sums are not where the gradients are/,
               fn -> unscale_accumulate(@good, tree, torch) end},
              {~r/\[:a\] is on a device already/, fn -> device_put(tree, device) end},
              {~r/^the result of \[:a\] cannot be :complex64/,
               fn -> cast_params(tree, :complex64) end},
              {~r/the tree is 5: expected/, fn -> device_put(5, device) end}
            ],
            do: assert_raise(ArgumentError, message, call)

        for _ <- 1..2, do: assert(:ok = device_free(tree))
        freed = ~r/\[:a\] is memory that was freed/
        assert_raise ArgumentError, freed, fn -> unscale(tree, torch) end
        assert_raise ArgumentError, ~r/memory that was freed/, fn -> device_get(tree) end
      end

      test "a policy steps as on the host", %{device: device} do
        %{policy: policy, state: state} = new("torch")
        report = Report.encode(measure(@good, new("torch"), want: :norm))
        factor = binary_part(state, 0, 32)

        for call <- [
              &Native.state_init(&1, policy),
              &Native.state_update(&1, policy, state, report),
              &Native.state_init_from(&1, policy, state),
              &Native.factor_multiply(&1, factor, 3.0),
              &Native.factor_clip_grad_norm(&1, factor, report, 0.5),
              &Native.factor_clip_grad_norm(&1, nil, report, 0.5),
              &Native.report_merge(&1, :binary.copy(report, 1000), 0, policy),
              &Native.report_merge(&1, "", 1, nil)
            ] do
          assert {:ok, binary} = call.(nil)
          assert call.(device.device) == {:ok, binary}
        end
      end

      test "what does not fit into memory is an error of its own", %{device: device} do
        allocate = fn -> DeviceTensor.allocate(device.device, f32: 2 ** 60) end
        error = assert_raise GradScaler.Error, allocate
        assert {error.status, error.details.name != nil} == {:memory, true}
      end

      test "ranges outside of memory are refused", %{device: %{device: device}} do
        {:ok, memory} = Native.memory_create(device, 8)
        [front, back] = for offset <- [0, 4], do: {1, memory, offset, 4}

        for result <- [
              Native.memory_write(memory, [{5, "abcd"}]),
              Native.memory_write(memory, [{0, "ab"}, {2 ** 64 - 1, "a"}]),
              Native.memory_write(memory, [{0, memory, 4, 5}]),
              Native.memory_write(memory, [{0, "ab"} | :end]),
              Native.memory_read(memory, [{0, 2 ** 63}]),
              Native.memory_read(memory, [{9, 0}]),
              Native.measure(device, nil, [{1, memory, 4, 8}], nil),
              Native.measure(device, nil, [{1, memory, 2 ** 64 - 4, 8}], nil),
              Native.measure(nil, nil, [{1, memory, 0, 8}], nil),
              Native.scale(device, nil, [front, back], [front, 1], nil)
            ] do
          assert {:error, %{message: message}} = result
          assert message != ""
        end

        assert :ok = Native.memory_write(memory, [{0, "abcdefgh"}, {2, memory, 5, 3}])
        assert {:ok, ["abfghfgh", "", "h"]} = Native.memory_read(memory, [{0, 8}, {8, 0}, {7, 1}])
      end

      test "many processes share a device", %{device: device} do
        tree = grads()
        expected = bits(unscale(tree, new("torch")))
        call = fn _ -> bits(unscale(device_put(tree, device), new("torch"))) end

        results = Task.async_stream(1..8, call, max_concurrency: 8, timeout: 60_000)
        assert Enum.all?(results, &(&1 == {:ok, expected}))
      end

      test "memory outlives the device's last term, and killed processes harm nobody", context do
        use_device = fn ->
          device = on(context.kind)
          for _ <- 1..100, do: unscale(device_put(@good, device), new())
        end

        large = {:f32, :binary.copy(<<1.0::little-float-32>>, 2_000_000)}
        call_on_dirty_scheduler = fn -> unscale(large, new()) end

        for delay <- 0..20, use <- [use_device, call_on_dirty_scheduler] do
          victim = spawn(use)
          Process.sleep(div(delay, 4))
          Process.exit(victim, :kill)
        end

        tree = Task.await(Task.async(fn -> device_put(@good, on(context.kind)) end), 60_000)
        :erlang.garbage_collect()
        assert device_get(tree) == @good
        assert {_, %{overflow: false}} = call_on_dirty_scheduler.()
      end
    end
  end

  test "the driver is not started before it is asked for" do
    code =
      ~s[GradScaler.update(GradScaler.new(), true); IO.write(File.read!("/proc/self/maps") =~ "libcuda")]

    arguments = ["-pa", Mix.Project.compile_path(), "-e", code]
    assert {"false", 0} = System.cmd("elixir", arguments)
  end

  test "without a driver there is an error that says why" do
    error = assert_raise GradScaler.Error, fn -> on({:cuda, 99}) end
    assert error.status in [:unavailable, :value]
    assert error.message =~ ~r/#{wording("driver|device")}/
  end

  test "a scaler without a device leaves trees where they are, and can take another's device" do
    scaler = new("torch")
    assert {device_put(@good, scaler), device_get(@good)} == {@good, @good}
    other = on({:cpu, 1})
    shared = on_device(scaler, other)
    assert shared == %{scaler | device: other.device}
    assert finite?([device_put(@good, shared), device_put(@good, other)])
    assert load(save(shared)) == scaler
  end

  describe "Nx" do
    @describetag :nx
    @compile {:no_warn_undefined, [Nx, Nx.Defn]}

    test "tensors come back with shape and names, and integers stay" do
      device = on({:cpu, 1})
      tree = %{w: Nx.tensor([[2.0, 4.0]], type: :f16, names: [:x, :y]), n: Nx.tensor([3])}
      grads = device_put(tree, device)
      {unscaled, _} = unscale(grads, new("none"))
      assert device_get(unscaled) == %{tree | w: Nx.tensor([[2.0, 4.0]], names: [:x, :y])}

      assert_raise ArgumentError, ~r/\[:w\] has the shape {1, 2}, its sum {2, 1}/, fn ->
        sums = device_put(%{tree | w: Nx.tensor([[0.0], [0.0]])}, device)
        unscale_accumulate(sums, grads, new("none"))
      end

      assert_raise ArgumentError, ~r/the tensors are traced/, fn ->
        Nx.Defn.jit(&device_put(&1, device)).(Nx.tensor(1.0))
      end
    end
  end
end
