defmodule GradScaler.Checkpoint do
  alias GradScaler.{Constants, Entry, Error, Fields, Native, Note}

  @key_bytes Entry.longest(:key)

  @moduledoc """
  Reads and writes checkpoints of frameworks, and reads their settings.

      iex> checkpoint = %{"model" => %{}, "scaler" => %{"scale" => 2048.0, "growth_interval" => 100, "_growth_tracker" => 3}}
      iex> {scaler, _notes} = GradScaler.Checkpoint.read(checkpoint, GradScaler.new("torch"))
      iex> {GradScaler.loss_scale(scaler), GradScaler.state(scaler).good_steps, GradScaler.policy(scaler).growth_interval}
      {2048.0, 3, 100}

  A checkpoint, or a configuration, is a map, a keyword list or a struct, nested or not, up to 16 deep. Its
  values are numbers, booleans, tensors of one element, texts and nil. Other values are ignored, but refused
  as a number of the scaler. A key has at most #{@key_bytes} bytes, including the keys above it and dots; if a
  key of the scaler is longer, pass the part of the checkpoint below its first keys.

  Each call returns its result and notes, on keys that are missing, ignored, changed or not possible in a
  format. A note has:

    * `message` - a sentence
    * `kind` - `:format`, `:missing`, `:ignored`, `:changed`, `:unusable`, `:outside_limits` or `:lost`
    * `field` - a field of the policy or the state; with `:format` the name of the format
    * `value` - the number in force

  To store only a scaler, use `GradScaler.save/1`, which makes bytes, or `write/3` with "gradscaler", which
  makes numbers by name.
  """

  @typedoc "A note on a key of a checkpoint or settings, or on a finding of a diagnosis."
  @type note :: %Note{kind: atom, field: binary, value: GradScaler.real(), message: binary}

  @typedoc "Keys with numbers, booleans, texts, nil, tensors of one element, or nested mappings."
  @type mapping :: map | keyword | struct

  @text_bytes Entry.longest(:text)
  @depth 16
  @int64 -0x8000000000000000..0x7FFFFFFFFFFFFFFF
  @importance [:unusable, :changed, :lost, :format, :ignored, :missing]

  @doc """
  Returns the names of all formats, each with a sentence on its framework and on what it holds.

      iex> is_map_key(GradScaler.Checkpoint.formats(), "deepspeed")
      true
  """
  @spec formats :: %{binary => binary}
  def formats, do: Fields.listed(&Native.format_name/1, &Native.format_summary/1)

  @doc """
  Returns the scaler of a checkpoint, and notes. Rules that the checkpoint lacks come from `scaler`; if
  `scaler` is nil, from the framework.

    * `:format` - one of `formats/0`; by default it is recognised by the keys
    * `:prefix` - the path of the scaler, such as "loss_scaler1"; needed if there are several, or if the
      scaler is not at the top or below one or two names

  If the scale is missing or impossible, raises `ArgumentError`, which names the key.

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
  Returns a scaler in the keys of a framework, and notes on what these cannot hold.

    * `:prefix` - the start of the keys; "" for none; by default the framework's own
    * `:keys` - `:texts`, the default, or `:atoms` for maps such as Axon's

  For Axon:

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
  Returns a scaler with a framework's settings, and notes. `settings` are the arguments of the framework's
  constructor or program, or its section of a configuration.

    * `:prefix` - the key above the settings
    * `:preset` - gives the rules that the settings leave out; by default, the framework's defaults do

  For DeepSpeed:

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

  # Makes an error about an entry name its key.
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

  # Returns the part of a key that the library quotes.
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

  # Returns the sentence of a note, with the name of a rule instead of its number.
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

  # Returns the keys and the entries of the library. A value that is no number gets an entry only beside numbers:
  # elsewhere it is a weight.
  defp entries(tree, label, prefix, names) when is_map(tree) or is_list(tree) do
    rows =
      for {[_ | parent] = path, entry, unread} <- walk(tree, []),
          do: {join(path), join(parent), entry, unread}

    refuse_long(rows, prefix, names)

    beside =
      for {_key, parent, %Entry{kind: kind}, _unread} <- rows,
          kind in [:number, :integer],
          into: MapSet.new([prefix || ""]),
          do: parent

    rows =
      for {key, parent, entry, unread} <- rows,
          byte_size(key) in 1..@key_bytes,
          unread == nil or parent in beside,
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

  # Refuses a key of the scaler that is too long: the scaler would continue without its number.
  defp refuse_long(rows, prefix, names) do
    long =
      for {key, _place, _entry, nil} <- rows,
          byte_size(key) > @key_bytes,
          [parent, name] = Regex.run(~r"^(.*?)[./]?([^./]*)$"s, key, capture: :all_but_first),
          parent == (prefix || parent),
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

  # Returns the names of numbers in checkpoints of all formats, without the digits that some programs of Paddle add.
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
    container(map, path, "a map") ++
      for {key, branch} <- map,
          is_binary(key) or is_atom(key) or is_integer(key),
          row <- walk(branch, [key | path]),
          do: row
  end

  defp walk(list, path) when is_list(list) do
    if list != [] and Keyword.keyword?(list),
      do: walk(Map.new(list), path),
      else:
        container(%{}, path, "a list") ++
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

  # A text that is too long has no meaning; its beginning is for messages.
  defp fitting(text) when byte_size(text) <= @text_bytes, do: text
  defp fitting(text), do: cut(text, @text_bytes - 3) <> "..."

  # Returns at most so many bytes of a text, without half a letter at their end.
  defp cut(text, bytes) when byte_size(text) <= bytes, do: text

  defp cut(text, bytes) do
    start = binary_part(text, 0, bytes)
    if String.valid?(start), do: start, else: cut(text, bytes - 1)
  end

  # Returns an unread row for a map or list below a key, except for %{loss_scale: %{loss_scale: 8.0}}, which is a path.
  defp container(_map, [], _what), do: []

  defp container(map, [key | _] = path, what),
    do: if(is_map_key(map, key), do: [], else: unread(path, what))
end
