defmodule GradScaler.Binaries do
  @moduledoc false
  # Calls on lists of {dtype, binary}, or of tensors on one device. GradScaler passes the leaves of a tree. The elements in
  # a binary are little-endian. If TensorOptions ask for them, the report has `per_tensor`, a binary with a report of each
  # tensor, and `histogram`. Errors raise; `names` names the entry of a list, see Error.check!/2.

  alias GradScaler.{Constants, DeviceTensor, Error, Native, Report, TensorOptions}

  @type dtype :: GradScaler.dtype()
  @type tensor :: {dtype, binary} | DeviceTensor.t()
  @type names :: map | (binary, integer -> binary | nil)

  # A call on more bytes runs on a dirty scheduler. This module chooses it: the library copies a large binary that starts
  # inside a byte, which takes longer than the call itself.
  @max_bytes 128 * 1024

  @doc """
  Calls `:scale`, `:unscale` or `:unscale_accumulate` with `out`, the dtypes of the results, or the sums that are
  added to. Returns the results and a report on them.

      iex> {:ok, factor} = GradScaler.Native.factor_init(2.0)
      iex> {[half], report} = GradScaler.Binaries.into(:unscale, factor, [{:f32, <<3.0::little-float-32>>}], [:f32], %GradScaler.TensorOptions{want: [:norm]})
      iex> {half, report.sum_squares}
      {{:f32, <<1.5::little-float-32>>}, 2.25}
  """
  @spec into(atom, binary | nil, [tensor], [dtype] | [tensor], TensorOptions.t(), names) ::
          {[tensor], Report.t()}
  def into(function, factor, tensors, out, options \\ %TensorOptions{}, names \\ %{}) do
    exec = device(tensors, names)
    dtypes = if function == :unscale_accumulate, do: Enum.map(out, &dtype/1), else: out
    out = outputs(function, exec, tensors, out, names)
    arguments = [exec, factor, encode(tensors), encode(out), encode_options(options, exec)]
    call(scheduled(function, tensors, options), arguments, tensors, {out, dtypes}, names)
  end

  @doc "Returns the report of `:unscale` into the tensors' own dtypes, without the results."
  @spec measure(binary | nil, [tensor], TensorOptions.t(), names) :: Report.t()
  def measure(factor, tensors, options \\ %TensorOptions{}, names \\ %{}) do
    exec = device(tensors, names)
    arguments = [exec, factor, encode(tensors), encode_options(options, exec)]
    function = scheduled(:measure, tensors, options)
    {_none, report} = call(function, arguments, tensors, {[], []}, names)
    report
  end

  # ---- calls ----

  defp call(function, [exec, factor | _] = arguments, tensors, {out, dtypes}, names) do
    # A device returns only a status. The same call on the host with no tensors checks the factor and has a message.
    if exec, do: Error.check!(Native.measure(nil, factor, [], nil))

    result = apply(Native, function, arguments)

    case Error.check!(with_names(result, tensors, dtypes), names) do
      {:ok, report, per_tensor, histogram} ->
        {[], report(report, per_tensor, histogram)}

      {:ok, made, report, per_tensor, histogram} ->
        {results(made, out, dtypes), report(report, per_tensor, histogram)}
    end
  end

  # Names the dtypes in the error of an output that is complex while its tensor is not, or the reverse.
  defp with_names({:error, %{field: "dtype", index: index} = details}, tensors, dtypes) do
    [from, to] = [dtype(Enum.at(tensors, index)), Enum.at(dtypes, index)]
    text = "cannot be #{inspect(to)}, as one of it and its tensor of #{inspect(from)} is complex"
    {:error, %{details | subject_length: 0, field: "", message: text}}
  end

  defp with_names(result, _tensors, _dtypes), do: result

  # Returns the function's variant for the scheduler that the work needs.
  defp scheduled(function, tensors, %{loss: loss}) do
    bytes = bytes(List.wrap(loss) ++ tensors, 0)
    if bytes > @max_bytes, do: :"#{function}_dirty", else: function
  end

  defp bytes([{_dtype, binary} | rest], sum), do: bytes(rest, sum + byte_size(binary))
  defp bytes(_none_or_of_a_device, sum), do: sum

  defp results([], [%DeviceTensor{} | _] = out, _dtypes), do: out
  defp results(binaries, _out, dtypes), do: Enum.zip(dtypes, binaries)

  defp report(report, per_tensor, histogram) do
    words = histogram && for <<word::little-signed-64 <- histogram>>, do: word
    %{Report.decode(report) | per_tensor: per_tensor, histogram: words}
  end

  # ---- tensors ----

  # Returns the device of the tensors, nil for the host. All must be on the same.
  defp device([], _names), do: nil

  defp device([first | _] = tensors, names) do
    exec = device_of(first)

    case Enum.find_index(tensors, &(device_of(&1) != exec)) do
      nil ->
        exec

      index ->
        where = Error.name(names, "tensors", index) || "tensors[#{index}]"
        raise ArgumentError, "#{where} is not where those before it are: put all on one device"
    end
  end

  defp device_of(%DeviceTensor{device: device}), do: device
  defp device_of(_pair), do: nil

  # Sums on a device are copied, as the call writes in place there.
  defp outputs(:unscale_accumulate, exec, _tensors, sums, names) do
    if device(sums, fn _tensors, index -> Error.name(names, "out", index) end) != exec,
      do: raise(ArgumentError, "sums are not where the gradients are: put all on one device")

    if exec, do: DeviceTensor.copy(exec, sums), else: sums
  end

  # Makes the outputs. On the host the library does so, by their dtypes.
  defp outputs(_function, nil, _tensors, dtypes, _names), do: Enum.map(dtypes, &number/1)

  defp outputs(_function, exec, tensors, dtypes, _names) do
    sizes =
      for {tensor, dtype} <- Enum.zip(tensors, dtypes),
          do: {dtype, div(tensor.bytes, size(tensor.dtype)) * size(dtype)}

    {_memory, tensors} = DeviceTensor.allocate(exec, sizes)
    tensors
  end

  # Copies a loss in host memory to the device of the tensors.
  defp encode_options(%TensorOptions{loss: loss} = options, exec) do
    copied = if exec && is_tuple(loss), do: hd(DeviceTensor.copy(exec, [loss])), else: loss
    TensorOptions.encode(%{options | loss: copied && encode_one(copied)})
  end

  defp encode(tensors), do: for(tensor <- tensors, do: encode_one(tensor))
  defp encode_one(dtype) when is_integer(dtype), do: dtype
  defp encode_one({dtype, binary}), do: {number(dtype), binary}
  defp encode_one(%{} = t), do: {number(t.dtype), t.memory, t.offset, t.bytes}

  defp dtype({dtype, _binary}), do: dtype
  defp dtype(%DeviceTensor{dtype: dtype}), do: dtype

  for {name, number} <- Constants.all(:dtype),
      do: defp(number(unquote(name)), do: unquote(number))

  defp number(other), do: Constants.number(:dtype, other, "dtype")
  defp size(dtype), do: Native.dtype_size(number(dtype))
end
