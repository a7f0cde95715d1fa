defmodule GradScaler.EXLA do
  @moduledoc """
  The pass over the gradients in programs that EXLA compiles: one call of the library's C code inside
  of the program, in place of the operations that `GradScaler.Defn` traces.

      {grads, overflow} = GradScaler.EXLA.unscale(grads, state, scaler: scaler, max_norm: 1.0)

  stands in a `defn` where `GradScaler.Defn.unscale/3` and `clip/2` would; state and `update` stay
  those of `GradScaler.Defn`. It works under every compiler and backend: where there is no handler,
  Nx runs the operations of `GradScaler.Defn`, and under EXLA the log says why.

  **Not run with EXLA yet.** It is written against what EXLA 0.12 to 0.13 document, `Nx.block/4` and
  `EXLA.CustomCall`. What is tested: the handler, in JAX's XLA, where it registers by the interface that
  EXLA's exports; the attributes and what is done without EXLA, here. `register/0` tells what EXLA's XLA
  says of the handler.

  The handler is for EXLA's `:host` client. EXLA does not let a custom call write where it reads, so
  the results are new memory. `exla` has to be a dependency of the application, so that it is compiled
  before this one.
  """

  require Logger
  alias GradScaler.{Defn, Error, Leaf, Native, Policy, Report, Tree}

  @compile {:no_warn_undefined, [Nx, :"Elixir.EXLA.CustomCall.Spec"]}
  @target "gradscaler"
  # Numbers of the handler: bindings/xla/xla_handler.c.
  @unscale 1
  @with_factor 1
  # A function of a block has one argument for each tensor, and the BEAM's have 255 at most.
  @most 250

  defmodule Unscale do
    @moduledoc "The block that `EXLA.CustomCall` lowers: what of a call is fixed while tracing."
    @enforce_keys [:count]
    defstruct [:count, :scaler, :max_norm]
  end

  @doc """
  Registers the library's handler with EXLA's XLA, under the name "gradscaler". Tracing does it, so this
  is for who wants to know: `{:error, %GradScaler.Error{}}` tells why EXLA will not use it. Start EXLA first.
  """
  @spec register() :: :ok | {:error, Error.t()}
  def register do
    case Native.xla_register(@target) do
      :ok -> :ok
      {:error, details} -> {:error, Error.new(details)}
    end
  end

  @doc """
  `{gradients divided by the scale, overflow}`, as `GradScaler.Defn.unscale/3`: half types become
  float32, integers stay, and `overflow` is a u8 scalar.

    * `:scaler` - its rules say what overflow is; without, Inf and NaN are
    * `:max_norm` - clips to this global norm, as `GradScaler.Defn.clip/2` does, but rounds once

  At most #{@most} gradients: a function of the BEAM has no more arguments. From Nx 0.12 on.
  """
  @spec unscale(Defn.tree(), Defn.state(), keyword) :: {Defn.tree(), term}
  def unscale(grads, %{scale: scale}, opts \\ []) do
    opts = Keyword.validate!(opts, [:scaler, :max_norm])
    leaves = Enum.reverse(Tree.reduce(grads, [], &gradient/3))

    block = %Unscale{
      count: length(leaves),
      scaler: opts[:scaler],
      max_norm: max_norm(opts[:max_norm])
    }

    if block.count > @most do
      raise ArgumentError,
            "#{block.count} gradients are more than the #{@most} of one call: use GradScaler.Defn.unscale"
    end

    unless Code.ensure_loaded?(Nx) and function_exported?(Nx, :block, 4) do
      raise ArgumentError, "Nx has no Nx.block/4, which 0.12 has: use GradScaler.Defn.unscale"
    end

    plain = Enum.map(leaves, &Nx.devectorize(&1, keep_names: true))
    operands = plain ++ [factor(scale)]
    default = of_arity(length(operands), &in_nx/2)
    templates = Enum.map(plain, &Nx.template(&1.shape, wide(&1.type), names: &1.names))
    output = List.to_tuple(templates ++ [Nx.template({words(Report)}, {:u, 32})])
    results = Tuple.to_list(Nx.block(block, operands, output, default))
    {unscaled, [report]} = Enum.split(results, block.count)
    {filled(grads, Enum.zip_with(leaves, unscaled, &vectorized/2)), overflow(report)}
  end

  @doc false
  def unquote(:"__defn:unscale__")(grads, state, opts), do: unscale(grads, state, opts)
  @doc false
  def unquote(:"__defn:unscale__")(grads, state), do: unscale(grads, state)

  # ---- what EXLA asks ----

  @doc false
  def lower(%Unscale{} = block, %{platform: :host}) do
    case register() do
      :ok ->
        {:ok,
         struct!(:"Elixir.EXLA.CustomCall.Spec",
           call_target_name: @target,
           attributes: attributes(block)
         )}

      {:error, error} ->
        Logger.warning(
          "GradScaler.EXLA computes with Nx operations, which is right and slower: #{error.message}"
        )

        :skip
    end
  end

  def lower(%Unscale{}, _client), do: :skip

  @doc false
  # The handler's attributes as MLIR text.
  def attributes(%Unscale{} = block) do
    integers = [call: @unscale, with: @with_factor, count: block.count]
    policy = block.scaler && Policy.encode(GradScaler.policy(block.scaler))

    for({name, number} <- integers, do: {to_string(name), "#{number} : i64"}) ++
      if(policy,
        do: [
          {"policy", ~s(dense<"0x#{Base.encode16(policy)}"> : tensor<#{byte_size(policy)}xui8>)}
        ],
        else: []
      ) ++
      if(block.max_norm, do: [{"max_norm", "#{block.max_norm} : f64"}], else: [])
  end

  # ---- the same in Nx ----

  defp in_nx(%Unscale{} = block, operands) do
    {leaves, [factor]} = Enum.split(operands, block.count)
    {unscaled, overflow} = Defn.unscale(leaves, %{scale: scale(factor)}, block.scaler)
    unscaled = if block.max_norm, do: Defn.clip(unscaled, block.max_norm), else: unscaled
    empty = Nx.broadcast(Nx.tensor(0, type: {:u, 32}), {words(Report)})
    overflow = Nx.reshape(Nx.as_type(overflow, {:u, 32}), {1})
    List.to_tuple(unscaled ++ [Nx.put_slice(empty, [1], overflow)])
  end

  # The words of a gsc_factor, as gsc_factor_init makes them.
  @doc false
  def factor(scale) do
    inverse = Nx.divide(Nx.tensor(1.0, type: {:f, 64}), scale)
    bits32 = &Nx.reshape(Nx.bitcast(Nx.as_type(&1, {:f, 32}), {:u, 32}), {1})
    generation = Nx.broadcast(Nx.tensor(0, type: {:u, 32}), {2})
    Nx.concatenate([halves(scale), halves(inverse), bits32.(scale), bits32.(inverse), generation])
  end

  defp halves(number) do
    bits = Nx.bitcast(number, {:u, 64})
    half = &Nx.reshape(Nx.as_type(&1, {:u, 32}), {1})
    low = Nx.bitwise_and(bits, Nx.tensor(0xFFFFFFFF, type: {:u, 64}))
    Nx.concatenate([half.(low), half.(Nx.right_shift(bits, Nx.tensor(32, type: {:u, 64})))])
  end

  defp scale(factor) do
    [low, high] = for i <- 0..1, do: Nx.as_type(word(factor, i), {:u, 64})
    bits = Nx.bitwise_or(low, Nx.left_shift(high, Nx.tensor(32, type: {:u, 64})))
    Nx.bitcast(bits, {:f, 64})
  end

  # gsc_report's second word.
  defp overflow(report), do: Nx.as_type(Nx.not_equal(word(report, 1), 0), {:u, 8})
  defp word(words, i), do: Nx.reshape(Nx.slice(words, [i], [1]), {})
  defp words(module), do: div(byte_size(module.encode(struct(module))), 4)

  # ---- trees ----

  defp gradient(leaf, _path, found) do
    case Leaf.dtype(leaf) do
      {:error, text} ->
        raise ArgumentError, "a tensor #{text}"

      nil ->
        found

      complex when complex in [:complex64, :complex128] ->
        raise ArgumentError, "a tensor is complex"

      _real ->
        [leaf | found]
    end
  end

  defp filled(tree, results) do
    {tree, []} =
      Tree.map_reduce(tree, results, fn leaf, _path, rest ->
        if Leaf.dtype(leaf), do: {hd(rest), tl(rest)}, else: {leaf, rest}
      end)

    tree
  end

  defp vectorized(%{vectorized_axes: []}, result), do: result
  defp vectorized(%{vectorized_axes: axes}, result), do: Nx.vectorize(result, Keyword.keys(axes))

  defp wide({:f, 64} = type), do: type
  defp wide(_type), do: {:f, 32}

  defp max_norm(nil), do: nil
  defp max_norm(number) when is_number(number) and number > 0, do: number / 1

  defp max_norm(other),
    do: raise(ArgumentError, "max_norm is #{inspect(other)}: it must be a number above 0")

  for count <- 1..(@most + 1) do
    arguments = Macro.generate_arguments(count, __MODULE__)

    defp of_arity(unquote(count), fun),
      do: fn block, unquote_splicing(arguments) -> fun.(block, unquote(arguments)) end
  end
end
