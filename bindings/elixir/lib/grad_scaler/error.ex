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
  # Passes results through and raises refusals. `names` says how a caller knows an argument of the library: a function
  # of its name and the index of an entry, -1 without, that gives a text or nil.
  @spec check!(term, (binary, integer -> binary | nil)) :: term
  def check!(result, names \\ fn _name, _index -> nil end)

  def check!({:error, details}, names) when is_map(details) do
    case new(details, names) do
      %{status: status} = error when status in @conditions -> raise error
      %{message: message} -> raise ArgumentError, message
    end
  end

  def check!(result, _names), do: result

  @doc false
  def new(details, names \\ fn _name, _index -> nil end) do
    status = Constants.name(:status, details.status)
    %__MODULE__{status: status, message: sentence(details, names), details: details}
  end

  defp sentence(%{message: message, subject_length: length} = details, names) do
    case names.(details.name, details.index) do
      nil ->
        message

      where ->
        <<_::binary-size(length), rest::binary>> = message
        "#{where}#{if details.field != "", do: ": " <> details.field} #{rest}"
    end
  end
end
