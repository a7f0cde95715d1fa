defmodule GradScaler.Binaries do
  @moduledoc """
  The second layer: lists of `{dtype, binary}` and structs; refusals raise `ArgumentError`.

  A dtype is a name of `t:dtype/0`, the binary holds its elements in little-endian order.
  `GradScaler` calls this with the leaves of a tree.

      iex> {:ok, factor} = GradScaler.Native.factor_init(2.0)
      iex> {[half], report} = GradScaler.Binaries.unscale(factor, [{:f32, <<3.0::little-float-32>>}], [:f32], [:norm])
      iex> {half, report.sum_squares}
      {{:f32, <<1.5::little-float-32>>}, 2.25}
  """
  alias GradScaler.{Constants, Native, Report}

  @type dtype :: unquote(Enum.reduce(Keyword.keys(Constants.all(:dtype)), &{:|, [], [&1, &2]}))
  @type tensor :: {dtype, binary}

  @doc "The names of all dtypes."
  def dtypes, do: Keyword.keys(Constants.all(:dtype))

  @doc "`tensors` times the factor's scale, as these dtypes."
  def scale(factor, tensors, dtypes) do
    {:ok, results} = check!(Native.scale(factor, encode(tensors), numbers(dtypes)))
    Enum.zip(dtypes, results)
  end

  @doc "`tensors` divided by the factor's scale, as these dtypes, and a report on them."
  def unscale(factor, tensors, dtypes, want) do
    {:ok, results, report} =
      check!(Native.unscale(factor, encode(tensors), numbers(dtypes), want(want)))

    {Enum.zip(dtypes, results), Report.decode(report)}
  end

  @doc "`unscale/4` with each product clamped to -limit..limit before it is rounded."
  def clip_value(factor, limit, tensors, dtypes, want) do
    {:ok, results, report} =
      check!(Native.clip_value(factor, limit, encode(tensors), numbers(dtypes), want(want)))

    {Enum.zip(dtypes, results), Report.decode(report)}
  end

  @doc "`sums` plus `tensors` divided by the factor's scale, if all of that is finite, and a report."
  def accumulate(factor, tensors, sums, want) do
    {:ok, results, report} =
      check!(Native.accumulate(factor, encode(tensors), encode(sums), want(want)))

    {for({{dtype, _}, result} <- Enum.zip(sums, results), do: {dtype, result}),
     Report.decode(report)}
  end

  @doc "The report of `unscale/4` into the tensors' own dtypes, without the results."
  def check(factor, tensors, want) do
    {:ok, report} = check!(Native.check(factor, encode(tensors), want(want)))
    Report.decode(report)
  end

  @doc "Raises what a native function refused as `ArgumentError`."
  def check!({:error, {_status, _argument, _index, _name, message}}),
    do: raise(ArgumentError, message)

  def check!(result), do: result

  defp encode(tensors), do: for({dtype, binary} <- tensors, do: {number(dtype), binary})
  defp numbers(dtypes), do: for(dtype <- dtypes, do: number(dtype))
  defp want(names), do: Constants.number(:want, names, "want")

  for {name, number} <- Constants.all(:dtype) do
    defp number(unquote(name)), do: unquote(number)
  end

  defp number(other) do
    raise ArgumentError, "dtype is #{inspect(other)}, not one of #{inspect(dtypes())}"
  end
end
