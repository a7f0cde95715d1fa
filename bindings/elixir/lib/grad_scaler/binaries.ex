defmodule GradScaler.Binaries do
  @moduledoc false
  # Calls on lists of {dtype, binary}, or of tensors on one device. GradScaler passes the leaves of a tree. The elements in
  # a binary are little-endian. If TensorOptions ask for them, the report has `per_tensor`, a binary with a report of each
  # tensor, and `histogram`. Errors raise; `names` names the entry of a list, see Error.check!/2.

  alias GradScaler.{Constants, DeviceTensor, Error, Native, Report, TensorOptions}

  @type dtype :: GradScaler.dtype()
  @type tensor :: {dtype, binary} | DeviceTensor.t()
  @type names :: map | (binary, integer -> binary | nil)

  # The nanoseconds that a call may take on a normal scheduler (the limit is 1 ms), and what its parts cost at worst: a
  # subnormal element that is accumulated, with everything measured. Usual elements take a fiftieth of that, but a dirty
  # scheduler costs only 10 us more. The rule is not in C, which has to copy a binary that starts inside a byte to know its
  # size.
  @normal_ns 900_000
  @tensor_ns 500
  @tensor_limits_ns 20_000
  @element_ns 24
  @wide_ns 72
  @plain_c_factor 12

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
    arguments = [factor, encode(tensors), encode(out), encode_options(options, exec)]
    call(function, exec, arguments, tensors, {out, dtypes}, names)
  end

  @doc "Returns the report of `:unscale` into the tensors' own dtypes, without the results."
  @spec measure(binary | nil, [tensor], TensorOptions.t(), names) :: Report.t()
  def measure(factor, tensors, options \\ %TensorOptions{}, names \\ %{}) do
    exec = device(tensors, names)
    arguments = [factor, encode(tensors), encode_options(options, exec)]
    {_none, report} = call(:measure, exec, arguments, tensors, {[], []}, names)
    report
  end

  # ---- calls ----

  defp call(function, exec, [factor, encoded | _] = arguments, tensors, {out, dtypes}, names) do
    # A device returns only a status. The same call on the host with no tensors checks the factor and has a message.
    if exec, do: Error.check!(Native.measure(nil, factor, [], nil))

    exec = exec || scheduler(encoded, List.last(arguments))
    result = apply(Native, function, [exec | arguments])

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

  # Returns `:dirty` if a call on host memory can hold up a normal scheduler. If not, tells that scheduler how much of its
  # time the call can take, and returns nil.
  defp scheduler(tensors, {want, _policy, _clamp, _per_tensor, histogram, loss}) do
    limits = histogram == true or Bitwise.band(want, Constants.all(:want)[:underflow]) != 0
    tensors_ns = length(tensors) * if(limits, do: @tensor_limits_ns, else: @tensor_ns)

    elements_ns =
      for {dtype, binary} <- [loss | tensors],
          (size = Native.dtype_size(dtype)) in 1..16,
          reduce: 0 do
        ns -> ns + div(byte_size(binary), size) * if(size > 4, do: @wide_ns, else: @element_ns)
      end

    ns = tensors_ns + elements_ns
    plain_c_ns = tensors_ns + elements_ns * @plain_c_factor

    if ns > @normal_ns or
         (plain_c_ns > @normal_ns and match?({:ok, %{cpu: "scalar"}}, Native.info_get())) do
      :dirty
    else
      # A turn has 4,000 reductions.
      :erlang.bump_reductions(40 + div(ns, 225))
      nil
    end
  end

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
