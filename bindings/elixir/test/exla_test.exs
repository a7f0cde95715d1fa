# The handler registers and is called, the attributes, and Nx in its place; with EXLA, where it is, a program of it.
unless Code.ensure_loaded?(EXLA) do
  # As EXLA 0.12 publishes it.
  defprotocol EXLA.CustomCall do
    @fallback_to_any true
    def call(struct, out, args, client)
  end

  defimpl EXLA.CustomCall, for: Any do
    def call(_struct, _out, _args, _client), do: :skip
  end

  defmodule EXLA.CustomCall.Spec do
    @enforce_keys [:call_target_name]
    defstruct [:call_target_name, attributes: [], operand_element_types: :default]
  end
end

defmodule GradScaler.EXLATest do
  use ExUnit.Case, async: false
  @compile {:no_warn_undefined, [Complex, Nx, Nx.Defn]}
  alias GradScaler.{EXLA, Native, Policy, Report}

  defmodule Standin do
    def load(path), do: :erlang.load_nif(String.to_charlist(path), 0)
    def registered, do: :erlang.nif_error(:nif_not_loaded)
    def unscale(_factor, _gradient, _policy), do: :erlang.nif_error(:nif_not_loaded)
  end

  @host %{platform: :host}

  # Compiled as a dependency would be, with EXLA there.
  setup_all do
    unless Code.ensure_loaded?(:"Elixir.EXLA"),
      do: Code.compile_file("lib/grad_scaler/exla_call.ex")

    :ok
  end

  defp load_standin do
    folder = Path.join(System.tmp_dir!(), "gradscaler-xla-#{System.pid()}")
    File.mkdir_p!(folder)
    on_exit(fn -> File.rm_rf!(folder) end)
    library = Path.join(folder, "standin")
    erts = Path.join([:code.root_dir(), "erts-#{:erlang.system_info(:version)}", "include"])

    flags =
      ~w(-std=c11 -shared -fPIC -fvisibility=hidden -Wall -Wextra -Werror -I../../include -I../xla) ++
        ["-isystem", erts, "-Wl,-soname,libxla_extension.so", "-o", library <> ".so"]

    {"", 0} = System.cmd("cc", ["test/support/standin_xla.c" | flags], stderr_to_stdout: true)
    :ok = Standin.load(library)
  end

  @tag :standin
  test "without an XLA it says so and is left to Nx, with one the handler registers, once and for all, and computes" do
    block = %EXLA.Unscale{count: 1}
    assert {:error, %GradScaler.Error{status: :unavailable} = error} = EXLA.register()
    assert error.message =~ "start EXLA first"

    assert ExUnit.CaptureLog.capture_log(fn ->
             assert :"Elixir.EXLA.CustomCall".call(block, nil, [], @host) == :skip
           end) =~ "slower: no XLA"

    load_standin()
    assert EXLA.register() == :ok
    assert EXLA.register() == :ok
    assert Standin.registered() == {"gradscaler", "Host"}

    assert {:ok, %{call_target_name: "gradscaler", operand_element_types: :default} = spec} =
             :"Elixir.EXLA.CustomCall".call(block, nil, [], @host)

    assert spec.__struct__ == :"Elixir.EXLA.CustomCall.Spec"
    assert :"Elixir.EXLA.CustomCall".call(block, nil, [], %{platform: :cuda}) == :skip

    scaler = GradScaler.new("torch", init_scale: 8.0)
    {:ok, factor} = Native.factor_init(8.0)
    gradient = for x <- [8.0, -4.0], into: <<>>, do: <<x::little-float-32>>
    policy = Policy.encode(GradScaler.policy(scaler))
    assert {unscaled, report} = Standin.unscale(factor, gradient, policy)
    assert {[f32: ^unscaled], expected} = GradScaler.unscale([f32: gradient], scaler)
    assert report == Report.encode(%{expected | generation: 0})
    inf = <<0, 0, 128, 127>>
    assert {_unscaled, <<_::32, 1::little-32, _::binary>>} = Standin.unscale(factor, inf, policy)

    assert Standin.unscale(factor, gradient, "older") =~
             "gradscaler: the policy has another size"
  end

  test "attributes are text of MLIR" do
    scaler = GradScaler.new("megatron")
    policy = Base.encode16(Policy.encode(GradScaler.policy(scaler)))

    assert EXLA.attributes(%EXLA.Unscale{count: 161}) ==
             [{"call", "1 : i64"}, {"with", "1 : i64"}, {"count", "161 : i64"}]

    assert EXLA.attributes(%EXLA.Unscale{count: 2, scaler: scaler, max_norm: 1.0e-7}) ==
             [{"call", "1 : i64"}, {"with", "1 : i64"}, {"count", "2 : i64"}] ++
               [
                 {"policy", ~s(dense<"0x#{policy}"> : tensor<#{div(byte_size(policy), 2)}xui8>)},
                 {"max_norm", "1.0e-7 : f64"}
               ]
  end

  test "names of the library's handler are checked" do
    assert {:error, %{message: message}} = Native.xla_register(<<0>>)
    assert message =~ "name has a zero byte"
  end

  describe "with Nx" do
    @describetag :nx_block

    test "the factor is that of the library" do
      for scale <- [65536.0, 3.0, 1.0e-3, 1.0e30] do
        {:ok, expected} = Native.factor_init(scale)
        assert Nx.to_binary(EXLA.factor(Nx.tensor(scale, type: {:f, 64}))) == expected
      end
    end

    test "gradients and overflow are those of GradScaler.Defn" do
      scaler = GradScaler.new("torch", init_scale: 3.0)
      state = GradScaler.Defn.init(scaler)

      grads = %{
        w: Nx.tensor([[9.0, -1.0]], type: {:f, 16}, names: [:rows, :columns]),
        b: {Nx.tensor(3.0, type: {:f, 64}), Nx.tensor(7)}
      }

      bad = put_in(grads.w, Nx.tensor([[:infinity, 1.0]], type: {:f, 16}))
      clipped = fn grads, state -> EXLA.unscale(grads, state, scaler: scaler, max_norm: 0.5) end

      for grads <- [grads, bad], run <- [& &1, &Nx.Defn.jit/1] do
        assert run.(&EXLA.unscale(&1, &2)).(grads, state) ==
                 GradScaler.Defn.unscale(grads, state)

        {expected, overflow} = GradScaler.Defn.unscale(grads, state, scaler)
        assert run.(clipped).(grads, state) == {GradScaler.Defn.clip(expected, 0.5), overflow}
      end
    end

    test "vectorized axes stay, and overflow is of all of them" do
      state = GradScaler.Defn.init(GradScaler.new("torch", init_scale: 2.0))
      grads = Nx.vectorize(Nx.tensor([[2.0], [:nan]]), :x)
      {unscaled, overflow} = EXLA.unscale(grads, state)
      assert unscaled == Nx.vectorize(Nx.tensor([[1.0], [:nan]]), :x)
      assert overflow == Nx.tensor(1, type: {:u, 8})
    end

    test "what cannot be is refused in words" do
      state = GradScaler.Defn.init(GradScaler.new("torch"))
      many = List.duplicate(Nx.tensor(1.0), 250)
      assert {[_ | _], overflow} = EXLA.unscale(many, state)
      assert Nx.to_number(overflow) == 0

      for {grads, opts, text} <- [
            {[Nx.tensor(1.0) | many], [], "251 gradients are more than the 250"},
            {[Nx.tensor(1.0)], [max_norm: 0], "max_norm is 0: it must be"},
            {[Nx.tensor(1.0)], [want: :norm], "unknown keys [:want]"},
            {[Nx.tensor(Complex.new(1.0, 2.0))], [], "is complex"}
          ],
          do:
            assert_raise(ArgumentError, ~r/#{Regex.escape(text)}/, fn ->
              EXLA.unscale(grads, state, opts)
            end)
    end
  end

  @tag :exla
  test "EXLA runs the handler in its programs" do
    scaler = GradScaler.new("torch", init_scale: 3.0)
    state = GradScaler.Defn.init(scaler)
    assert EXLA.register() == :ok

    for x <- [1.0, :nan], type <- [{:f, 32}, {:f, 16}, {:bf, 16}] do
      grads = {Nx.tensor([x, 6.0], type: type), Nx.tensor(5)}
      run = &Nx.Defn.jit(&1, compiler: :"Elixir.EXLA").(grads, state)

      assert {{unscaled, _}, overflow} =
               run.(fn grads, state -> EXLA.unscale(grads, state, scaler: scaler) end)

      {{expected, _}, expected_overflow} = GradScaler.Defn.unscale(grads, state, scaler)
      assert Nx.to_binary(unscaled) == Nx.to_binary(expected)
      assert Nx.to_number(overflow) == Nx.to_number(expected_overflow)
    end
  end
end
