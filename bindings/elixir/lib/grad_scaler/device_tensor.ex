defmodule GradScaler.DeviceTensor do
  @moduledoc false
  # A tensor in the memory of a device. All tensors of a tree share one allocation.

  alias GradScaler.{Error, Native}

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

  # The library's alignment of memory.
  @alignment 256

  @doc "Allocates memory of a device, with a tensor for each {dtype, bytes}."
  def allocate(device, sizes) do
    {layout, total} =
      Enum.map_reduce(sizes, 0, fn {dtype, bytes}, offset ->
        {{dtype, offset, bytes}, div(offset + bytes + @alignment - 1, @alignment) * @alignment}
      end)

    memory = Error.ok!(Native.memory_create(device, total))
    tensor = %__MODULE__{device: device, memory: memory, dtype: nil, offset: 0, bytes: 0}
    {memory, for({d, o, b} <- layout, do: %{tensor | dtype: d, offset: o, bytes: b})}
  end

  @doc "Copies pairs or device tensors to new memory of the device."
  def copy(device, sources) do
    {sizes, contents} =
      sources
      |> Enum.map(fn
        {dtype, binary} -> {{dtype, byte_size(binary)}, [binary]}
        from -> {{from.dtype, from.bytes}, [from.memory, from.offset, from.bytes]}
      end)
      |> Enum.unzip()

    {memory, tensors} = allocate(device, sizes)
    writes = Enum.zip_with(tensors, contents, &List.to_tuple([&1.offset | &2]))
    :ok = Error.check!(Native.memory_write(memory, writes))
    tensors
  end

  @doc "Returns the elements of each tensor; one call reads all tensors that share memory."
  def read(tensors) do
    for {memory, tensors} <- Enum.group_by(tensors, & &1.memory),
        binaries =
          Error.ok!(Native.memory_read(memory, Enum.map(tensors, &{&1.offset, &1.bytes}))),
        {tensor, binary} <- Enum.zip(tensors, binaries),
        into: %{},
        do: {tensor, binary}
  end

  defimpl Inspect do
    def inspect(tensor, _options),
      do: "#GradScaler.DeviceTensor<#{tensor.dtype}, #{tensor.bytes} bytes>"
  end
end
