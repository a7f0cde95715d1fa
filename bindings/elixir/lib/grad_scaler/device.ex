defmodule GradScaler.Device do
  @moduledoc """
  Gradients in the memory of a CUDA device, or threads for those in host memory.

      {:ok, device} = GradScaler.Device.open(:cuda)
      grads = GradScaler.Device.put(grads, device)
      {grads, report} = GradScaler.unscale(grads, scaler)   # there, in one call
      grads = GradScaler.Device.get(grads)

  `put/2` copies a whole tree and leaves a `GradScaler.Device.Tensor` where each of its tensors was.
  `GradScaler.unscale/3`, `measure/3`, `unscale_accumulate/4`, `scale_loss/3` and `cast_params/3` take
  such a tree as any other; results are new memory of the device, and `get/1` brings them back as what
  they were, Nx tensors or pairs. Reports and states are host memory all the same, so each call waits
  for the device, on a dirty scheduler; calls on one device take turns.

  Memory is freed when the last term that names it is garbage, and a device after its memory. As the
  collector does not know how much a small term holds, `free/1` frees a tree now.

  A device is used by the node that opened it. When the library is upgraded in a running node, devices
  that were open before are refused by the new code: open them again.
  """

  alias GradScaler.{Error, Leaf, Native, Tree}

  defmodule Tensor do
    @moduledoc "A tensor in the memory of a device; part of memory that a whole tree shares."
    @enforce_keys [:device, :memory, :dtype, :offset, :bytes]
    defstruct [:device, :memory, :dtype, :offset, :bytes, :like]

    @type t :: %__MODULE__{
            device: reference,
            memory: reference,
            dtype: GradScaler.Binaries.dtype(),
            offset: non_neg_integer,
            bytes: non_neg_integer,
            like: struct | nil
          }

    defimpl Inspect do
      def inspect(tensor, _options),
        do: "#GradScaler.Device.Tensor<#{tensor.dtype}, #{tensor.bytes} bytes>"
    end
  end

  @enforce_keys [:reference, :kind]
  defstruct [:reference, :kind]

  @type kind :: :cuda | {:cuda, non_neg_integer} | {:cpu, pos_integer}
  @type t :: %__MODULE__{reference: reference, kind: kind}

  # As the library aligns memory.
  @alignment 256

  @doc """
  Opens `:cuda`, which is `{:cuda, 0}`, another CUDA device, or `{:cpu, threads}`.

  An error says why there is none, as a `GradScaler.Error`. Loading the kernels takes seconds the
  first time on a machine.

      iex> {:ok, device} = GradScaler.Device.open({:cpu, 2})
      iex> grads = GradScaler.Device.put(%{w: {:f32, <<8.0::little-float-32>>}}, device)
      iex> {grads, _report} = GradScaler.unscale(grads, GradScaler.new("static", init_scale: 4.0))
      iex> GradScaler.Device.get(grads)
      %{w: {:f32, <<2.0::little-float-32>>}}
  """
  @spec open(kind) :: {:ok, t} | {:error, Error.t()}
  def open(kind \\ :cuda)
  def open(:cuda), do: open({:cuda, 0})
  def open({:cuda, ordinal} = kind), do: opened(Native.context_create_cuda(ordinal), kind)
  def open({:cpu, threads} = kind), do: opened(Native.context_create_cpu(threads), kind)

  def open(kind) do
    raise ArgumentError,
          "a device is :cuda, {:cuda, ordinal} or {:cpu, threads}, not #{inspect(kind)}"
  end

  defp opened({:ok, reference}, kind), do: {:ok, %__MODULE__{reference: reference, kind: kind}}
  defp opened({:error, details}, _kind), do: {:error, Error.new(details)}

  @doc "`open/1`, which raises `GradScaler.Error`."
  @spec open!(kind) :: t
  def open!(kind \\ :cuda) do
    case open(kind) do
      {:ok, device} -> device
      {:error, error} -> raise error
    end
  end

  @doc "The tree with its floats on the device. Integers stay where they are."
  @spec put(GradScaler.tree(), t) :: GradScaler.tree()
  def put(tree, %__MODULE__{reference: device}) do
    floats = tree |> Tree.reduce([], &host_float/3) |> Enum.reverse()
    sizes = for {dtype, binary} <- floats, do: {dtype, byte_size(binary)}
    {memory, tensors} = allocate(device, sizes)

    pieces =
      for {%{offset: offset}, {_dtype, binary}} <- Enum.zip(tensors, floats), do: {offset, binary}

    :ok = Error.check!(Native.memory_write(memory, pieces))

    {tree, []} =
      Tree.map_reduce(tree, tensors, fn leaf, _path, tensors ->
        if Leaf.dtype(leaf),
          do: {%{hd(tensors) | like: Leaf.like(leaf)}, tl(tensors)},
          else: {leaf, tensors}
      end)

    tree
  end

  defp host_float(leaf, path, floats) do
    case {leaf, Leaf.dtype(leaf), Leaf.traced?(leaf)} do
      {%Tensor{}, _, _} -> refuse(path, "is on a device already")
      {_, _, true} -> refuse(path, "is traced, and has no elements")
      {_, {:error, text}, _} -> refuse(path, text)
      {_, nil, _} -> floats
      {_, dtype, _} -> [Leaf.tensor(leaf, dtype) | floats]
    end
  end

  defp refuse(path, text), do: raise(ArgumentError, "#{Tree.where(path, "the tensor")} #{text}")

  @doc "The tree with its tensors as they were, in host memory. What is no device's stays."
  @spec get(GradScaler.tree()) :: GradScaler.tree()
  def get(tree) do
    read = read_all(tensors(tree))

    Tree.map(tree, fn
      %Tensor{} = tensor -> Leaf.put(tensor, {tensor.dtype, Map.fetch!(read, place(tensor))})
      leaf -> leaf
    end)
  end

  defp tensors(tree) do
    Tree.reduce(tree, [], fn
      %Tensor{} = leaf, _path, tensors -> [leaf | tensors]
      _leaf, _path, tensors -> tensors
    end)
  end

  # {where: elements}, in one call for all that share memory.
  defp read_all(tensors) do
    for {memory, tensors} <- Enum.group_by(tensors, & &1.memory),
        {:ok, binaries} =
          Error.check!(Native.memory_read(memory, Enum.map(tensors, &{&1.offset, &1.bytes}))),
        {tensor, binary} <- Enum.zip(tensors, binaries),
        into: %{},
        do: {place(tensor), binary}
  end

  defp place(%Tensor{memory: memory, offset: offset, bytes: bytes}), do: {memory, offset, bytes}

  @doc "Frees the memory of a tree, and of whatever shares it, now; whoever still uses it is refused."
  @spec free(GradScaler.tree()) :: :ok
  def free(tree) do
    for memory <- tree |> tensors() |> Enum.map(& &1.memory) |> Enum.uniq(),
        do: :ok = Error.check!(Native.memory_destroy(memory))

    :ok
  end

  @doc false
  # Memory of a device and new tensors in it: one for each {dtype, bytes}.
  def allocate(device, sizes) do
    {places, total} =
      Enum.map_reduce(sizes, 0, fn {dtype, bytes}, offset ->
        {{dtype, offset, bytes}, div(offset + bytes + @alignment - 1, @alignment) * @alignment}
      end)

    {:ok, memory} = Error.check!(Native.memory_create(device, total))

    tensors =
      for {dtype, offset, bytes} <- places,
          do: %Tensor{device: device, memory: memory, dtype: dtype, offset: offset, bytes: bytes}

    {memory, tensors}
  end
end
