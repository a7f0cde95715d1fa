defmodule GradScaler.Checkpoint do
  alias GradScaler.{Constants, Entry, Error, Fields, Native, Note}

  @key_bytes Entry.longest(:key)

  @moduledoc """
  Checkpoints and settings of every framework, so that a run goes on where it stopped, there or here.

      iex> checkpoint = %{"model" => %{}, "scaler" => %{"scale" => 2048.0, "growth_interval" => 100, "_growth_tracker" => 3}}
      iex> {scaler, _notes} = GradScaler.Checkpoint.read(checkpoint, GradScaler.new("torch"))
      iex> {GradScaler.loss_scale(scaler), GradScaler.state(scaler).good_steps, GradScaler.policy(scaler).growth_interval}
      {2048.0, 3, 100}

  A checkpoint, or a configuration, is a map, a keyword list or a struct, nested or not, with numbers,
  booleans, tensors of one element, texts and nil at its ends, up to 16 deep. Whatever else is there is
  passed over, and refused where a number of the scaler belongs. So is a key of more than #{@key_bytes} bytes,
  with those that it is nested in: pass what is below the first of them.

  Each call returns notes beside its result: what was not said, was ignored, means something else here,
  or cannot be held. The `message` of a note is a sentence; its `kind` is `:format`, `:missing`, `:ignored`,
  `:changed`, `:unusable` or `:lost`; `field` is one of the policy or the state, with `:format` the name of
  the format; `value` is the number that counts from now on.

  To store a scaler of ours and nothing else, `GradScaler.save/1` makes bytes; `write/3` with
  "gradscaler" makes numbers by name.
  """

  @typedoc "Something to know of a call that succeeded."
  @type note :: %Note{kind: atom, field: binary, value: GradScaler.real(), message: binary}

  @typedoc "Keys with numbers, texts, nil, tensors of one element, or more of these."
  @type mapping :: map | keyword | struct

  @text_bytes Entry.longest(:text)
  @depth 16
  @int64 -0x8000000000000000..0x7FFFFFFFFFFFFFFF
  @importance [:unusable, :changed, :lost, :format, :ignored, :missing]

  @doc """
  All formats, with a sentence each on their framework and on what they hold.

      iex> is_map_key(GradScaler.Checkpoint.formats(), "deepspeed")
      true
  """
  @spec formats :: %{binary => binary}
  def formats, do: Fields.listed(&Native.format_name/1, &Native.format_summary/1)

  @doc """
  The scaler that goes on from a checkpoint, by the rules of `scaler` with the settings that the
  checkpoint has, or, where that is nil, by the rules of its framework; and notes.

    * `:format` - its format, one of `formats/0`; without it, the keys tell
    * `:prefix` - where the scaler is, such as "loss_scaler1"; needed if there are several, or if it
      is not at the top or below one or two names

  A checkpoint without a scale, or with one that cannot be, raises `ArgumentError`, which names the key.

      iex> GradScaler.Checkpoint.read([loss_scale: -1.0, counter: 3], nil, format: "axon")
      ** (ArgumentError) loss_scale is -1: it must be a scale: 0 or above
  """
  @spec read(mapping, GradScaler.t() | nil, keyword) :: {GradScaler.t(), [note]}
  def read(checkpoint, scaler \\ nil, options \\ []) do
    options = Keyword.validate!(options, format: nil, prefix: nil)
    prefix = text(options[:prefix], "prefix")
    {keys, entries} = entries(checkpoint, "the checkpoint", prefix, &saved_names/0)
    policy = if scaler, do: scaler.policy

    {:ok, policy, state, notes} =
      options[:format]
      |> text("format")
      |> Native.state_import(prefix, entries, policy)
      |> check!(keys)

    {%GradScaler{policy: policy, state: state}, notes(notes, keys)}
  end

  @doc """
  A scaler in the keys of a framework, and notes on what they cannot hold.

    * `:prefix` - what the keys begin with, "" for nothing; without it, what the framework has
    * `:keys` - `:atoms` for maps such as Axon's; without it, texts

  For Axon, which keeps tensors in its map:

      iex> scaler = GradScaler.new("axon", init_scale: 1024.0)
      iex> {checkpoint, _notes} = GradScaler.Checkpoint.write(scaler, "axon", keys: :atoms)
      iex> checkpoint
      %{counter: 0, loss_scale: 1024.0}
  """
  @spec write(GradScaler.t(), binary | atom, keyword) :: {map, [note]}
  def write(%GradScaler{} = scaler, format, options \\ []) do
    options = Keyword.validate!(options, prefix: nil, keys: :texts)
    prefix = text(options[:prefix], "prefix")
    {:ok, entries, notes} = scaler |> export(text(format, "format"), prefix) |> Error.check!()

    name =
      case options[:keys] do
        :atoms -> &String.to_atom/1
        :texts -> & &1
        other -> Fields.refuse("keys", other, ":texts or :atoms")
      end

    tree =
      Enum.reduce(rows(entries), %{}, fn {key, value}, tree ->
        put_in(tree, for(part <- String.split(key, "."), do: Access.key(name.(part), %{})), value)
      end)

    {tree, notes(notes, [])}
  end

  @doc """
  A scaler that is set up as a framework's is by `settings`: the arguments of its constructor or
  program, or its part of a configuration; and notes.

    * `:prefix` - the key that they are under
    * `:preset` - the rules that they are put into; without it, the rules of the framework

  My configuration, in gradscaler:

      iex> config = %{"train_batch_size" => 8, "fp16" => %{"initial_scale_power" => 12, "hysteresis" => 3}}
      iex> {scaler, _notes} = GradScaler.Checkpoint.settings(config, "deepspeed", prefix: "fp16")
      iex> {GradScaler.loss_scale(scaler), GradScaler.policy(scaler).hysteresis}
      {4096.0, 3}
  """
  @spec settings(mapping, binary | atom, keyword) :: {GradScaler.t(), [note]}
  def settings(settings, format, options \\ []) do
    options = Keyword.validate!(options, prefix: nil, preset: nil)
    prefix = text(options[:prefix], "prefix")
    {keys, entries} = entries(settings, "settings", prefix || "", fn -> :all end)
    policy = if options[:preset], do: GradScaler.new(options[:preset]).policy

    {:ok, policy, notes} =
      format
      |> text("format")
      |> Native.policy_import(prefix, entries, policy)
      |> check!(keys)

    state = Error.ok!(Native.state_init(nil, policy))
    {%GradScaler{policy: policy, state: state}, notes(notes, keys)}
  end

  # ---- the lists of the library ----

  defp export(%GradScaler{policy: policy, state: state}, format, prefix),
    do: Native.state_export(format, prefix, policy, state)

  @entry_size byte_size(Entry.encode(%Entry{}))
  @doc false
  def rows(entries) do
    for <<bytes::binary-size(@entry_size) <- entries>>,
        entry = Entry.decode(bytes),
        do: {entry.key, value(entry)}
  end

  defp text(nil, _label), do: nil
  defp text(name, _label) when is_binary(name) or is_atom(name), do: to_string(name)
  defp text(other, label), do: Fields.refuse(label, other, "a name")

  # An error about an entry names its key.
  defp check!({:error, %{name: "entries"} = details}, keys) do
    <<where::binary-size(details.subject_length), rest::binary>> = details.message
    {key, what} = if details.index >= 0, do: Enum.at(keys, details.index), else: {nil, nil}
    known = "no format in GradScaler.Checkpoint.formats/0"
    rest = String.replace(rest, "no format that is known", known)
    rest = if what, do: String.replace(rest, ~s("#{what}"), what, global: false), else: rest

    message =
      if key,
        do: "#{key} #{String.replace_prefix(rest, ~s(of "#{quoted(key)}" ), "")}",
        else: "#{where}#{rest}"

    Error.check!({:error, %{details | message: message}})
  end

  defp check!(result, _keys),
    do: Error.check!(result, %{"entries_count" => "the number of its entries"})

  # The library quotes the beginning of a long key.
  defp quoted(key), do: binary_part(key, 0, min(byte_size(key), 64))

  @note_size byte_size(Note.encode(%Note{}))
  @doc false
  def notes(bytes, keys) do
    unread =
      for {{_key, what}, index} <- Enum.with_index(keys), what, into: MapSet.new(), do: index

    notes =
      for <<note::binary-size(@note_size) <- bytes>>,
          note = Note.decode(note),
          note.kind != :ignored or not MapSet.member?(unread, note.entry),
          do: %{note | message: named(note)}

    Enum.sort_by(notes, fn note -> Enum.find_index(@importance, &(&1 == note.kind)) || 0 end)
  end

  # The sentence of a note with the name of a rule instead of its number.
  defp named(%Note{field: field, value: value, message: message}) do
    with group when group != nil <- Constants.of_field(field),
         number when is_float(value) <- trunc(value),
         name when not is_integer(name) <- Constants.name(group, number) do
      Regex.replace(~r/\b(is|at) #{number}\b/, message, "\\1 #{inspect(name)}")
    else
      _ -> message
    end
  end

  defp value(%Entry{kind: :text, text: text}), do: text
  defp value(%Entry{kind: :null}), do: nil
  defp value(%Entry{kind: :integer, integer: integer}), do: integer
  defp value(%Entry{kind: :boolean, integer: integer}), do: integer != 0
  defp value(%Entry{value: value}), do: value

  # A value that is no number is handed over only beside numbers: elsewhere it is a weight.
  defp entries(tree, label, prefix, names) when is_map(tree) or is_list(tree) do
    rows =
      for {[_ | place] = path, entry, unread} <- walk(tree, []),
          do: {join(path), join(place), entry, unread}

    refuse_long(rows, prefix, names)

    beside =
      for {_key, place, %Entry{kind: kind}, _unread} <- rows,
          kind in [:number, :integer],
          into: MapSet.new([prefix || ""]),
          do: place

    rows =
      for {key, place, entry, unread} <- rows,
          byte_size(key) in 1..@key_bytes,
          unread == nil or place in beside,
          do: {key, %{entry | key: key}, unread}

    if is_list(tree) and tree != [] and not Keyword.keyword?(tree) and
         Enum.all?(rows, &elem(&1, 2)),
       do: Fields.refuse(label, tree, "a map, a keyword list or a struct")

    {for({key, _entry, unread} <- rows, do: {key, unread}),
     for({_key, entry, _unread} <- rows, into: <<>>, do: Entry.encode(entry))}
  end

  defp entries(other, label, _prefix, _names),
    do: Fields.refuse(label, other, "a map, a keyword list or a struct")

  defp join(path), do: path |> Enum.reverse() |> Enum.join(".")

  # The scaler would go on without a key of its own that is too long.
  defp refuse_long(rows, prefix, names) do
    long =
      for {key, _place, _entry, nil} <- rows,
          byte_size(key) > @key_bytes,
          [place, name] = Regex.run(~r"^(.*?)[./]?([^./]*)$"s, key, capture: :all_but_first),
          place == (prefix || place),
          do: {key, stem(name)}

    names = if long != [], do: names.()

    for {key, name} <- long, names == :all or name in names do
      raise ArgumentError,
            "#{key} is a key of #{byte_size(key)} bytes: at most #{@key_bytes} are read, " <>
              "so pass what is below its place"
    end

    for {key, _place, _entry, _unread} <- rows, String.contains?(key, <<0>>) do
      raise ArgumentError, "#{inspect(key)} is a key with a zero, which no scaler has"
    end
  end

  # The names of numbers in checkpoints, in any format; in some programs of Paddle numbers end them.
  defp saved_names do
    for format <- Map.keys(formats()),
        {:ok, entries, _notes} <- [export(GradScaler.new("torch"), format, "")],
        {key, _value} <- rows(entries),
        into: MapSet.new(),
        do: stem(key)
  end

  defp stem(name), do: String.replace(name, ~r/\d+$/, "")

  defp walk(nil, path), do: readable(path, %Entry{kind: :null})
  defp walk(true, path), do: walk(1, path)
  defp walk(false, path), do: walk(0, path)

  defp walk(number, path) when is_integer(number) and number in @int64,
    do: readable(path, %Entry{kind: :integer, value: number, integer: number})

  defp walk(number, path) when is_number(number) or number in [:infinity, :neg_infinity, :nan],
    do: readable(path, %Entry{kind: :number, value: number})

  defp walk(atom, path) when is_atom(atom), do: walk(Atom.to_string(atom), path)

  defp walk(text, path) when is_binary(text) do
    if String.valid?(text) and not String.contains?(text, <<0>>),
      do: readable(path, %Entry{kind: :text, text: fitting(text)}),
      else: unread(path, "a binary")
  end

  defp walk(_deeper, path) when length(path) == @depth, do: []

  defp walk(%{__struct__: Nx.Tensor} = tensor, path) do
    case Nx.size(tensor) do
      1 -> tensor |> Nx.reshape({}) |> Nx.to_number() |> walk(path)
      size -> unread(path, "a tensor of #{size} elements")
    end
  end

  defp walk(%{__struct__: _} = struct, path), do: struct |> Map.from_struct() |> walk(path)

  defp walk(map, path) when is_map(map) do
    place(map, path, "a map") ++
      for {key, branch} <- map,
          is_binary(key) or is_atom(key) or is_integer(key),
          row <- walk(branch, [key | path]),
          do: row
  end

  defp walk(list, path) when is_list(list) do
    if list != [] and Keyword.keyword?(list),
      do: walk(Map.new(list), path),
      else:
        place(%{}, path, "a list") ++
          for(
            {branch, index} <- Enum.with_index(list),
            row <- walk(branch, [index | path]),
            do: row
          )
  end

  defp walk(_nothing, []), do: []
  defp walk(_nothing, path), do: unread(path, "no number")

  defp readable(path, entry), do: [{path, entry, nil}]
  defp unread(path, what), do: [{path, %Entry{kind: :text, text: what}, what}]

  # A text that does not fit means nothing, nor does what is left of it.
  defp fitting(text) when byte_size(text) <= @text_bytes, do: text
  defp fitting(text), do: cut(text, @text_bytes - 3) <> "..."

  # As many bytes of a text, without half a letter at their end.
  defp cut(text, bytes) when byte_size(text) <= bytes, do: text

  defp cut(text, bytes) do
    start = binary_part(text, 0, bytes)
    if String.valid?(start), do: start, else: cut(text, bytes - 1)
  end

  # %{loss_scale: %{loss_scale: 8.0}} is a place of a scaler, any other map no number.
  defp place(_map, [], _what), do: []

  defp place(map, [key | _] = path, what),
    do: if(is_map_key(map, key), do: [], else: unread(path, what))
end
