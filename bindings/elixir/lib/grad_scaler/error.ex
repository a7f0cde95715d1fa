defmodule GradScaler.Error do
  @moduledoc """
  What the library could not do, though it was asked rightly: no device, no memory, a failure of a
  driver. Wrong arguments raise `ArgumentError`, with a text made of the same members.

    * `:status` - why, such as `:unavailable`, `:memory`, `:device`
    * `:message` - a sentence
    * `:details` - the members of the library's error as a map: argument, index, field, value, limits
  """

  alias GradScaler.Constants

  defexception [:status, :message, details: %{}]

  @type t :: %__MODULE__{status: atom | integer, message: binary, details: map}

  # Not the caller's doing.
  @conditions [:unavailable, :memory, :device]

  @doc false
  # Passes results through and raises refusals. `names` says how a caller knows an argument of the library: a map of
  # texts by its name, or a function of its name and the index of an entry, -1 without, that gives a text or nil.
  @spec check!(term, map | (binary, integer -> binary | nil)) :: term
  def check!(result, names \\ %{})

  def check!({:error, details}, names) when is_map(details) do
    case new(details, names) do
      %{status: status} = error when status in @conditions -> raise error
      %{message: message} -> raise ArgumentError, message
    end
  end

  def check!(result, _names), do: result

  @doc false
  # Returns the one result of a call.
  def ok!(result, names \\ %{}) do
    {:ok, value} = check!(result, names)
    value
  end

  @doc false
  def new(details, names \\ %{}) do
    status = Constants.name(:status, details.status)
    %__MODULE__{status: status, message: sentence(details, names), details: details}
  end

  defp sentence(%{message: message, subject_length: length} = details, names) do
    case name(names, details.name, details.index) do
      nil ->
        message

      where ->
        <<_::binary-size(length), rest::binary>> = message
        "#{where}#{if details.field != "", do: ": " <> details.field} #{rest}"
    end
  end

  @doc false
  def name(names, name, _index) when is_map(names), do: names[name]
  def name(names, name, index), do: names.(name, index)
end
