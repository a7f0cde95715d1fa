# The Elixir client of tests/parity: a digest over everything that a training computes, which must be the same in every
# language. Argument: the file, which starts with "<preset> <field=value,...>" and a line feed.
Code.require_file("settings.exs", __DIR__)

defmodule Parity do
  alias GradScaler.{Binaries, Constants, Native, Report, State, TensorOptions}

  @options %TensorOptions{want: Keyword.keys(Constants.all(:want)), histogram: true}
  # The fields that are hashed are those in front of the reserved words.
  @report_bytes 112
  @state_bytes 156

  def run(path) do
    [head, body] = path |> File.read!() |> :binary.split("\n")
    [preset, settings] = String.split(head)
    <<steps::little-32, tensors::little-32, rest::binary>> = body
    {shapes, data} = shapes(rest, tensors, [])
    %{policy: policy, state: state} = Settings.scaler(preset, settings)
    start = {policy, state, data, 0}

    {_policy, state, <<>>, hash} =
      Enum.reduce(0..(steps - 1), start, &step(&1, &2, shapes, steps))

    state = State.decode(state)
    digest = Base.encode16(<<hash::32>>, case: :lower)
    "#{digest} #{state.total_overflows + state.total_bad_losses} #{state.factor.scale}"
  end

  defp shapes(rest, 0, shapes), do: {Enum.reverse(shapes), rest}

  defp shapes(<<dtype::little-32, 0::32, count::little-64, rest::binary>>, left, shapes) do
    shape = {Constants.name(:dtype, dtype), count * Native.dtype_size(dtype)}
    shapes(rest, left - 1, [shape | shapes])
  end

  defp step(number, {policy, state, data, hash}, shapes, steps) do
    <<loss::binary-4, data::binary>> = data
    {tensors, data} = Enum.map_reduce(shapes, data, &take/2)
    factor = binary_part(state, 0, 32)

    wide = Enum.map(tensors, fn _ -> :f32 end)

    {results, report} =
      Binaries.into(:unscale, factor, tensors, wide, %{@options | loss: {:f32, loss}})

    [{dtype, _} | _] = tensors
    {back, _report} = Binaries.into(:scale, factor, Enum.take(results, 1), [dtype])
    histogram = for word <- report.histogram, do: <<word::little-64>>
    bytes = Report.encode(report)
    {:ok, state} = Native.state_update(nil, policy, state, bytes)

    metrics =
      for {name, value} <- GradScaler.metrics(%GradScaler{policy: policy, state: state}, report),
          do: [Atom.to_string(name), <<number(value)::little-float-64>>]

    {:ok, line} = Native.history_line(state, bytes, nil, nil, nil, number + 1, 0.0, "parity")

    fields = [
      binary_part(bytes, 0, @report_bytes),
      histogram,
      binary_part(state, 0, @state_bytes),
      metrics,
      line
    ]

    hash = :erlang.crc32(hash, [binaries(results), binaries(back), fields])
    half_way(number == div(steps, 2) - 1, number + 2, {policy, state, data, hash})
  end

  defp take({dtype, size}, data) do
    <<tensor::binary-size(size), rest::binary>> = data
    {{dtype, tensor}, rest}
  end

  defp number(value) when is_boolean(value), do: if(value, do: 1, else: 0)
  defp number(value), do: value

  defp binaries(tensors), do: for({_dtype, binary} <- tensors, do: binary)

  # Goes on from what was saved.
  defp half_way(false, _step, acc), do: acc

  defp half_way(true, step, {policy, state, data, hash}) do
    {:ok, bytes} = Native.state_save(policy, state)
    {:ok, policy, state} = Native.state_load(bytes)
    {:ok, start} = Native.history_start(policy, nil, state, nil, step, 0, 0.0, "parity")
    {policy, state, data, :erlang.crc32(hash, start)}
  end
end

[path] = System.argv()
IO.puts(Parity.run(path))
