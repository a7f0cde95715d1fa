defmodule GradScaler.Checkpoint do
  alias GradScaler.{Constants, Entry, Error, Fields, FormatKey, Native, Note}

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

    * `message` - a sentence; its words can change in any version
    * `kind` - in this order: `:unusable`, `:outside_limits`, `:changed`, `:lost`, `:format`, `:ignored` or
      `:missing`
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
  @integers -0x8000000000000000..0xFFFFFFFFFFFFFFFF
  @unknown_format Constants.number(:status, :format, "status")

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
    format = text(options[:format], "format")
    {keys, entries} = entries(checkpoint, "the checkpoint", prefix, &saved_keys/0)
    policy = if scaler, do: scaler.policy

    {:ok, policy, state, notes} =
      format |> Native.state_import(prefix, entries, policy) |> check!(keys, format)

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
    format = text(format, "format")

    {:ok, entries, notes} =
      format
      |> Native.state_export(prefix, scaler.policy, GradScaler.state_bytes(scaler))
      |> check!([], format)

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
    format = text(format, "format")

    {:ok, policy, notes} =
      format |> Native.policy_import(prefix, entries, policy) |> check!(keys, format)

    state = Error.ok!(Native.state_init(nil, policy))
    {%GradScaler{policy: policy, state: state}, notes(notes, keys)}
  end

  # ---- the lists of the library ----

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

  # Makes an error about an entry name its key, and an error about the format the list of them.
  defp check!({:error, %{name: "entries", index: index} = details}, keys, _format)
       when index >= 0 do
    {key, unread} = Enum.at(keys, index)
    Error.check!({:error, %{details | message: "#{key} #{refusal(details, unread)}"}})
  end

  defp check!({:error, %{status: @unknown_format, name: name} = details}, keys, format)
       when name == "format" or (name == "entries" and keys != [] and format == nil) do
    message = "#{details.message} (GradScaler.Checkpoint.formats/0 lists the formats)"
    Error.check!({:error, %{details | message: message}})
  end

  defp check!(result, _keys, _format),
    do: Error.check!(result, %{"entries_count" => "the number of its entries"})

  # Returns the message of an error after its subject. A value that walk/2 could not read is a text in the library, and
  # would stand in quotes.
  defp refusal(%{message: message, requirement_start: start}, unread)
       when unread != nil and start > 0,
       do: "is #{unread}: it must be #{behind(message, start)}"

  defp refusal(%{message: message, subject_length: length}, _unread), do: behind(message, length)

  defp behind(text, bytes), do: binary_part(text, bytes, byte_size(text) - bytes)

  @note_size byte_size(Note.encode(%Note{}))
  @doc false
  def notes(bytes, keys) do
    unread =
      for {{_key, what}, index} <- Enum.with_index(keys), what, into: MapSet.new(), do: index

    for <<note::binary-size(@note_size) <- bytes>>,
        note = Note.decode(note),
        note.kind != :ignored or not MapSet.member?(unread, note.entry),
        do: named(note)
  end

  # Returns a note with a rule or flags as Elixir writes them.
  defp named(%Note{value_start: start, value_length: length} = note) when length > 0 do
    case Constants.of_field(note.field, note.value) do
      nil ->
        note

      value ->
        <<before::binary-size(start), _::binary-size(length), rest::binary>> = note.message
        value = inspect(value)
        %{note | value_length: byte_size(value), message: before <> value <> rest}
    end
  end

  defp named(note), do: note

  defp value(%Entry{kind: :text, text: text}), do: text
  defp value(%Entry{kind: :null}), do: nil

  defp value(%Entry{kind: :integer, integer: integer, value: value}) when value > 0,
    do: Bitwise.band(integer, 0xFFFFFFFFFFFFFFFF)

  defp value(%Entry{kind: :integer, integer: integer}), do: integer
  defp value(%Entry{kind: :boolean, integer: integer}), do: integer != 0
  defp value(%Entry{value: value}), do: value

  # Returns the keys and the entries of the library. A value that is no number gets an entry only beside numbers:
  # elsewhere it is a weight.
  defp entries(tree, label, prefix, saved) when is_map(tree) or is_list(tree) do
    rows =
      for {[_ | parent] = path, entry, unread} <- walk(tree, []),
          do: {join(path), join(parent), entry, unread}

    refuse_long(rows, prefix, saved)

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

  defp entries(other, label, _prefix, _saved),
    do: Fields.refuse(label, other, "a map, a keyword list or a struct")

  defp join(path), do: path |> Enum.reverse() |> Enum.join(".")

  # Refuses a key of the scaler that is too long: the scaler would continue without its number.
  defp refuse_long(rows, prefix, saved) do
    long =
      for {key, _place, _entry, nil} <- rows,
          byte_size(key) > @key_bytes,
          name = key |> String.split([".", "/"]) |> List.last(),
          parent = binary_part(key, 0, max(byte_size(key) - byte_size(name) - 1, 0)),
          parent == (prefix || parent),
          do: {key, name}

    saved = if long != [], do: saved.()

    for {key, name} <- long, saved == :all or saved?(name, saved) do
      raise ArgumentError,
            "#{key} is a key of #{byte_size(key)} bytes: at most #{@key_bytes} are read, " <>
              "so pass what is below its place"
    end

    for {key, _place, _entry, _unread} <- rows, String.contains?(key, <<0>>) do
      raise ArgumentError, "#{inspect(key)} is a key with a zero, which no scaler has"
    end
  end

  @key_size byte_size(FormatKey.encode(%FormatKey{}))
  # Returns the keys of checkpoints of all formats, each with true if any number can stand for the 0 at its end.
  defp saved_keys do
    for format <- Map.keys(formats()),
        keys = Error.ok!(Native.format_keys(format)),
        <<bytes::binary-size(@key_size) <- keys>>,
        %{key: key, uses: uses} = FormatKey.decode(bytes),
        :saved in uses,
        into: MapSet.new(),
        do: {key, :numbered in uses}
  end

  defp saved?(name, saved) do
    numbered = Regex.replace(~r/[0-9]+\z/, name, "0")
    MapSet.member?(saved, {name, false}) or MapSet.member?(saved, {numbered, true})
  end

  defp walk(nil, path), do: readable(path, %Entry{kind: :null})
  defp walk(true, path), do: walk(1, path)
  defp walk(false, path), do: walk(0, path)

  defp walk(number, path) when is_integer(number) and number in @integers do
    <<integer::signed-64>> = <<number::64>>
    readable(path, %Entry{kind: :integer, value: number, integer: integer})
  end

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
