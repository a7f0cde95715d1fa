defmodule GradScaler.Leaf do
  @moduledoc false
  # A leaf of a tree: an Nx tensor, a {dtype, binary} pair, or a tensor on a device. Nx is matched by
  # its struct's name, so that this compiles and runs without it.

  alias GradScaler.DeviceTensor

  @dtypes Keyword.keys(GradScaler.Constants.all(:dtype))
  # The dtypes that Nx has; older versions lack some.
  @types %{
    f32: {:f, 32},
    f64: {:f, 64},
    f16: {:f, 16},
    bf16: {:bf, 16},
    f8_e4m3fn: {:f8_e4m3fn, 8},
    f8_e5m2: {:f, 8},
    complex64: {:c, 64},
    complex128: {:c, 128}
  }
  @names Map.new(@types, fn {name, type} -> {type, name} end)
  @integers [:u, :s, :pred]

  defguardp is_pair(term)
            when is_tuple(term) and tuple_size(term) == 2 and is_atom(elem(term, 0)) and
                   is_binary(elem(term, 1))

  defguard is_leaf(term)
           when is_struct(term, :"Elixir.Nx.Tensor") or is_struct(term, DeviceTensor) or
                  is_pair(term)

  @doc "Returns true if a tensor is traced: it is an expression of a graph."
  def traced?(%{data: %{__struct__: :"Elixir.Nx.Defn.Expr"}}), do: true
  def traced?(_leaf), do: false

  @doc "Returns the dtype; nil for integers, which have no gradients; {:error, text} for other types."
  def dtype(%DeviceTensor{dtype: dtype}), do: dtype
  def dtype({name, _binary}) when name in @dtypes, do: name

  def dtype({name, _binary}),
    do: {:error, "has the dtype #{inspect(name)}, not one of #{inspect(@dtypes)}"}

  def dtype(%{type: type}) when is_map_key(@names, type), do: Map.fetch!(@names, type)
  def dtype(%{type: {kind, _bits}}) when kind in @integers, do: nil

  def dtype(%{type: type}),
    do: {:error, "has the type #{inspect(type)}, which the library does not know"}

  @doc "Returns the dtype of a caller's type: `:f16`, or Nx's `{:f, 16}`."
  def dtype_of_type(name) when name in @dtypes, do: name
  def dtype_of_type(type) when is_map_key(@names, type), do: Map.fetch!(@names, type)

  def dtype_of_type(type),
    do: raise(ArgumentError, "type is #{inspect(type)}, not one of #{inspect(@dtypes)}")

  @doc "Returns Nx's type of a dtype."
  def type(dtype) do
    Nx.Type.normalize!(@types[dtype])
  rescue
    ArgumentError ->
      reraise ArgumentError,
              [message: "type is #{inspect(dtype)}, which this Nx has no tensors of"],
              __STACKTRACE__
  end

  @doc "Returns a leaf for a call: `{dtype, binary}`, or a device tensor unchanged."
  def tensor(%DeviceTensor{} = tensor, _dtype), do: tensor
  def tensor({_dtype, _binary} = pair, _), do: pair

  def tensor(%{data: %{__struct__: :"Elixir.Nx.BinaryBackend", state: binary}}, dtype),
    do: {dtype, binary}

  def tensor(tensor, dtype), do: {dtype, Nx.to_binary(tensor)}

  @doc "Returns the shape; nil for a pair, which has none."
  def shape(%DeviceTensor{like: like}), do: shape(like)
  def shape(%{shape: shape}), do: shape
  def shape(_pair), do: nil

  @doc "Returns a leaf without its elements, for `put/2`."
  def like(%DeviceTensor{like: like}), do: like

  def like(%{data: %{__struct__: backend}} = tensor),
    do: %{tensor | data: %{__struct__: backend}}

  def like(_pair), do: nil

  @doc "Replaces the elements of a leaf; it keeps its shape, its names and its backend."
  def put(leaf, %DeviceTensor{} = result), do: %{result | like: like(leaf)}
  def put(%DeviceTensor{like: like}, result), do: put(like, result)

  def put(%{data: %{__struct__: backend}} = tensor, {dtype, binary}) do
    result = Nx.BinaryBackend.from_binary(%{tensor | type: type(dtype)}, binary, [])
    if backend == Nx.BinaryBackend, do: result, else: Nx.backend_transfer(result, backend)
  end

  def put(_pair_or_nil, result), do: result
end
