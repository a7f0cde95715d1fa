defmodule GradScaler.Tree do
  @moduledoc false
  # Walks tensors, pairs, lists, tuples, maps and structs that implement Nx.Container. Anything else raises an error with
  # its path, because an unchecked gradient can bring an overflow into the parameters.

  import GradScaler.Leaf, only: [is_leaf: 1]

  @doc "Replaces leaves by `fun.(leaf, path, acc)`; a path is a reversed list of keys and indices."
  def map_reduce(tree, acc, fun), do: walk(tree, [], acc, fun)

  @doc "Replaces leaves by `fun.(leaf)`."
  def map(tree, fun),
    do: tree |> map_reduce(nil, fn leaf, _path, nil -> {fun.(leaf), nil} end) |> elem(0)

  @doc "Folds `fun.(leaf, path, acc)` over all leaves, in order."
  def reduce(tree, acc, fun) do
    tree |> map_reduce(acc, fn leaf, path, acc -> {leaf, fun.(leaf, path, acc)} end) |> elem(1)
  end

  defp walk(leaf, path, acc, fun) when is_leaf(leaf), do: fun.(leaf, path, acc)

  defp walk(list, path, acc, fun) when is_list(list), do: walk_list(list, 0, path, acc, fun)

  defp walk(tuple, path, acc, fun) when is_tuple(tuple) do
    {list, acc} = walk_list(Tuple.to_list(tuple), 0, path, acc, fun)
    {List.to_tuple(list), acc}
  end

  # The tensors of a scaler are no gradients.
  defp walk(%GradScaler{} = scaler, _path, acc, _fun), do: {scaler, acc}

  defp walk(struct, path, acc, fun) when is_struct(struct),
    do: walk_struct(struct, path, acc, fun)

  defp walk(map, path, acc, fun) when is_map(map) do
    # Sorted by keys: from OTP 26 on the order of a map differs between nodes, and a norm is summed in order.
    {pairs, acc} =
      Enum.map_reduce(List.keysort(Map.to_list(map), 0), acc, fn {key, value}, acc ->
        {value, acc} = walk(value, [key | path], acc, fun)
        {{key, value}, acc}
      end)

    {Map.new(pairs), acc}
  end

  defp walk(other, path, _acc, _fun), do: refuse(other, path)

  defp walk_list([head | tail], index, path, acc, fun) do
    {head, acc} = walk(head, [index | path], acc, fun)
    {tail, acc} = walk_list(tail, index + 1, path, acc, fun)
    {[head | tail], acc}
  end

  defp walk_list([], _index, _path, acc, _fun), do: {[], acc}
  defp walk_list(tail, _index, path, _acc, _fun), do: refuse(tail, path)

  defp walk_struct(struct, path, acc, fun) do
    unless container?(struct), do: refuse(struct, path)

    field_names = field_names(struct)

    {struct, {_index, acc}} =
      Nx.Container.traverse(struct, {0, acc}, fn part, {index, acc} ->
        {part, acc} = walk(part, [Map.get(field_names, index, index) | path], acc, fun)
        {part, {index + 1, acc}}
      end)

    {struct, acc}
  end

  # Returns the fields of a container's parts by position. Nx.Container does not tell them, so each part is replaced by its
  # position and then looked for in the fields. If that is not possible, errors have the position.
  defp field_names(struct) do
    {numbered, _count} =
      Nx.Container.traverse(struct, 0, fn _part, n -> {{__MODULE__, n}, n + 1} end)

    for {field, {__MODULE__, n}} <- Map.from_struct(numbered), into: %{}, do: {n, field}
  rescue
    _ -> %{}
  end

  defp container?(struct) do
    Code.ensure_loaded?(Nx.Container) and
      Nx.Container.impl_for(struct) not in [nil, Nx.Container.Any]
  end

  defp refuse(other, path) do
    raise ArgumentError,
          "#{where(path)} is #{inspect(other, limit: 5, printable_limit: 50)}: expected a tensor, " <>
            "a {dtype, binary} pair, or a list, tuple, map or Nx.Container of them"
  end

  @doc "Returns a path as the name of a tensor; nil for the root."
  def name([]), do: nil
  def name(path), do: path |> Enum.reverse() |> Enum.map_join(".", &word/1)

  defp word(key) when is_atom(key) or is_binary(key) or is_integer(key), do: to_string(key)
  defp word(key), do: inspect(key)

  @doc "Returns a path as text for a message."
  def where(path, name \\ "the tree")
  def where([], name), do: name
  def where(path, _name), do: Enum.map_join(Enum.reverse(path), &"[#{inspect(&1)}]")
end
