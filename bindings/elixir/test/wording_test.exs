defmodule GradScaler.WordingTest do
  # The examples of the documentation that show a sentence of the library.
  use ExUnit.Case, async: true
  @moduletag :wording

  doctest GradScaler, only: [new: 2, reason: 3, set_rank: 3]
  doctest GradScaler.Checkpoint, only: [read: 3]
end
