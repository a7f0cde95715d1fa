defmodule GradScaler.ConcurrencyTest do
  # Many processes on the same binaries, small and large calls, while the module is exchanged under them.
  use ExUnit.Case, async: false

  alias GradScaler.{Binaries, Native, TensorOptions}

  defp shared do
    small = for i <- 1..20, do: {:f16, :binary.copy(<<i * 1.0::little-float-16>>, 64)}
    large = {:bf16, :binary.copy(<<0x3F80::little-16>>, 100_000)}
    %{small: small, large: large, nan: {:f32, :binary.copy(<<0x7FC00000::little-32>>, 50_000)}}
  end

  defp digest(scaler, tree) do
    {grads, report} = GradScaler.unscale(tree, scaler, want: [:norm, :amax, :underflow])
    :erlang.md5(:erlang.term_to_binary({grads, report, GradScaler.update(scaler, report)}))
  end

  test "results outlive the process that made them, and garbage collection" do
    tree = shared()
    scaler = GradScaler.new("torch")
    {grads, _} = Task.await(Task.async(fn -> GradScaler.unscale(tree, scaler) end), 60_000)
    for _ <- 1..50, do: spawn(fn -> GradScaler.unscale(tree, scaler) end)
    :erlang.garbage_collect()
    assert grads == elem(GradScaler.unscale(tree, scaler), 0)
  end

  # Returns the trace of a call.
  defp traced(flags, call) do
    task = Task.async(fn -> receive(do: (:go -> call.())) end)
    :erlang.trace(task.pid, true, flags)
    send(task.pid, :go)
    Task.await(task, 60_000)
    delivered = :erlang.trace_delivered(task.pid)
    assert_receive {:trace_delivered, _pid, ^delivered}, 60_000
    {:messages, messages} = Process.info(self(), :messages)
    for message <- messages, elem(message, 0) == :trace, elem(message, 1) == task.pid, do: message
  end

  test "a large binary that starts within a byte is copied on a dirty scheduler" do
    <<_::3, bits::bitstring>> = <<0::3, 0::size(200_000)-unit(8)>>
    small = binary_part(bits, 0, 1000)
    scaler = GradScaler.new("torch")
    GradScaler.unscale({:f32, small}, scaler)
    :erlang.trace_pattern({Native, :unscale, 5}, true)

    for {binary, options, exec} <- [
          {bits, [], :dirty},
          {small, [], nil},
          {small, [loss: {:f32, bits}], :dirty}
        ] do
      messages = traced([:call], fn -> GradScaler.unscale({:f32, binary}, scaler, options) end)
      assert [{:trace, _, :call, {Native, :unscale, [^exec | _]}}] = messages
    end
  end

  test "a call that can take a millisecond leaves the normal schedulers" do
    {:ok, factor} = Native.factor_init(2.0)
    slowness = if GradScaler.info().cpu == "scalar", do: 12, else: 1
    [norm, all] = for want <- [1, 7], do: %TensorOptions{want: want}
    histogram = %{norm | histogram: true}
    many = &List.duplicate({:f32, ""}, &1)
    long = fn dtype, size -> &[{dtype, <<0::size(div(&1, slowness) * size)-unit(8)>>}] end

    for {most, tensors, options} <- [
          {45, many, all},
          {45, many, histogram},
          {1800, many, norm},
          {37_400, long.(:f32, 4), norm},
          {12_400, long.(:f64, 8), norm},
          {12_400, long.(:complex64, 8), norm}
        ],
        {count, leaves} <- [{most, false}, {most + div(most, 40), true}] do
      call = fn -> Binaries.measure(factor, tensors.(count), options) end
      # The number of every dirty scheduler is 0.
      events = traced([:running, :scheduler_id], call)
      assert {count, leaves} == {count, Enum.any?(events, &match?({_, _, :in, _, 0}, &1))}
    end
  end

  test "a device that was open before an upgrade is refused after it" do
    device = GradScaler.on_device(GradScaler.new(), {:cpu, 2})
    tree = GradScaler.device_put(shared(), device)
    directory = copy_of_application(0)
    upgrade(directory)
    assert_raise ArgumentError, fn -> GradScaler.unscale(tree, GradScaler.new()) end
    assert_raise ArgumentError, fn -> GradScaler.device_get(tree) end
    again = GradScaler.device_put(shared(), GradScaler.on_device(GradScaler.new(), {:cpu, 2}))
    upgrade(original())
    assert_raise ArgumentError, fn -> GradScaler.device_get(again) end

    device = GradScaler.on_device(GradScaler.new(), {:cpu, 1})
    assert GradScaler.device_get(GradScaler.device_put(shared(), device)) == shared()
  end

  test "the same file is loaded again, as r of iex does, and devices go on" do
    device = GradScaler.on_device(GradScaler.new(), {:cpu, 2})
    tree = GradScaler.device_put(shared(), device)

    for _ <- 1..3 do
      soft_purge(6000)
      assert {:module, Native} = :code.load_file(Native)
      assert GradScaler.device_get(tree) == shared()
    end

    :code.purge(Native)
    assert GradScaler.device_get(GradScaler.device_put(shared(), device)) == shared()
  end

  test "the library is upgraded while others call it" do
    scaler = GradScaler.new("torch")
    trees = Map.values(shared())
    expected = Enum.map(trees, &digest(scaler, &1))

    callers =
      for _ <- 1..8, do: Task.async(fn -> call_until_stopped(scaler, trees, expected, 0) end)

    for round <- 1..3, directory <- [copy_of_application(round), original()] do
      assert upgrade(directory) =~ directory
      Process.sleep(20)
    end

    for caller <- callers, do: send(caller.pid, :stop)
    assert Enum.all?(Task.await_many(callers, 60_000), &(&1 > 0))
    assert Native.version() > 0
  end

  defp call_until_stopped(scaler, trees, expected, calls) do
    ^expected = Enum.map(trees, &digest(scaler, &1))

    receive do
      :stop -> calls + 1
    after
      0 -> call_until_stopped(scaler, trees, expected, calls + 1)
    end
  end

  defp original, do: Path.dirname(Mix.Project.compile_path())

  # Another file is another library to the system's loader: its own code and its own data. A file of its own each time:
  # one that is loaded must not be written into.
  defp copy_of_application(round) do
    directory =
      Path.join([System.tmp_dir!(), "gradscaler-#{System.pid()}-#{round}", "gradscaler-9.9.9"])

    on_exit(fn -> File.rm_rf!(Path.dirname(directory)) end)
    File.mkdir_p!(directory)

    for part <- ["ebin", "priv"],
        do: File.cp_r!(Path.join(original(), part), Path.join(directory, part))

    directory
  end

  # As a release does it: the path first, then the code; callers move over at their next call. Returns where priv is.
  defp upgrade(directory) do
    true = :code.replace_path(:gradscaler, to_charlist(Path.join(directory, "ebin")))
    soft_purge(6000)
    {:module, Native} = :code.load_file(Native)
    to_string(:code.priv_dir(:gradscaler))
  end

  # Waits for processes in the old code, instead of killing them.
  defp soft_purge(0), do: flunk("the old code stays in use")

  defp soft_purge(left) do
    unless :code.soft_purge(Native) do
      Process.sleep(10)
      soft_purge(left - 1)
    end
  end
end
