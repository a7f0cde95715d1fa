/* SPDX-License-Identifier: MIT */
/* Generated from bindings/abi.toml by bindings/generate.py. Do not edit. */
#include "terms.h"

static ERL_NIF_TERM make_info(ErlNifEnv *env, const gsc_info *from)
{
    ERL_NIF_TERM keys[] = {
        enif_make_atom(env, "version"),
        enif_make_atom(env, "cpu"),
        enif_make_atom(env, "cpu_available"),
        enif_make_atom(env, "cpu_note"),
        enif_make_atom(env, "cuda"),
    };
    ERL_NIF_TERM values[] = {
        enif_make_uint(env, from->version),
        make_string(env, from->cpu),
        make_string(env, from->cpu_available),
        make_string(env, from->cpu_note),
        make_string(env, from->cuda),
    };
    return make_map(env, keys, values, 5);
}

static ERL_NIF_TERM nif_status_string(ErlNifEnv *env, int argc, const ERL_NIF_TERM argv[])
{
    (void)argc;
    struct call call = {.env = env};
    int32_t status;
    if (!get_int32(&call, argv[0], 0, "status", &status))
        return failed(&call);
    return make_string(env, gsc_status_string(status));
}

static ERL_NIF_TERM nif_version(ErlNifEnv *env, int argc, const ERL_NIF_TERM argv[])
{
    (void)argc;
    (void)argv;
    return enif_make_uint(env, gsc_version());
}

static ERL_NIF_TERM nif_policy_preset(ErlNifEnv *env, int argc, const ERL_NIF_TERM argv[])
{
    (void)argc;
    struct call call = {.env = env};
    char name[64];
    gsc_policy out = GSC_POLICY_INIT;
    if (!get_string(&call, argv[0], 0, "name", name, sizeof name) ||
        gsc_policy_preset(name, &out, &call.err) != GSC_OK)
        return failed(&call);
    const ERL_NIF_TERM terms[] = {make_bytes(env, &out, sizeof out)};
    return done(&call, terms, 1);
}

static ERL_NIF_TERM nif_policy_check(ErlNifEnv *env, int argc, const ERL_NIF_TERM argv[])
{
    (void)argc;
    struct call call = {.env = env};
    gsc_policy policy;
    if (!get_growing(&call, argv[0], 0, "policy", &policy, sizeof policy) ||
        gsc_policy_check(&policy, &call.err) != GSC_OK)
        return failed(&call);
    return done(&call, NULL, 0);
}

static ERL_NIF_TERM nif_preset_count(ErlNifEnv *env, int argc, const ERL_NIF_TERM argv[])
{
    (void)argc;
    (void)argv;
    return enif_make_uint(env, gsc_preset_count());
}

static ERL_NIF_TERM nif_preset_name(ErlNifEnv *env, int argc, const ERL_NIF_TERM argv[])
{
    (void)argc;
    struct call call = {.env = env};
    uint32_t index;
    if (!get_uint32(&call, argv[0], 0, "index", &index))
        return failed(&call);
    return make_string(env, gsc_preset_name(index));
}

static ERL_NIF_TERM nif_preset_summary(ErlNifEnv *env, int argc, const ERL_NIF_TERM argv[])
{
    (void)argc;
    struct call call = {.env = env};
    uint32_t index;
    if (!get_uint32(&call, argv[0], 0, "index", &index))
        return failed(&call);
    return make_string(env, gsc_preset_summary(index));
}

static ERL_NIF_TERM nif_prepare(ErlNifEnv *env, int argc, const ERL_NIF_TERM argv[])
{
    (void)argc;
    (void)argv;
    struct call call = {.env = env};
    if (gsc_prepare(NULL, &call.err) != GSC_OK)
        return failed(&call);
    return done(&call, NULL, 0);
}

static ERL_NIF_TERM nif_get_info(ErlNifEnv *env, int argc, const ERL_NIF_TERM argv[])
{
    (void)argc;
    (void)argv;
    struct call call = {.env = env};
    gsc_info out = GSC_INFO_INIT;
    if (gsc_get_info(&out, &call.err) != GSC_OK)
        return failed(&call);
    const ERL_NIF_TERM terms[] = {make_info(env, &out)};
    return done(&call, terms, 1);
}

static ERL_NIF_TERM nif_factor_init(ErlNifEnv *env, int argc, const ERL_NIF_TERM argv[])
{
    (void)argc;
    struct call call = {.env = env};
    double scale;
    gsc_factor out;
    if (!get_double(&call, argv[0], 0, "scale", &scale) ||
        gsc_factor_init(scale, &out, &call.err) != GSC_OK)
        return failed(&call);
    const ERL_NIF_TERM terms[] = {make_bytes(env, &out, sizeof out)};
    return done(&call, terms, 1);
}

static ERL_NIF_TERM nif_factor_multiply(ErlNifEnv *env, int argc, const ERL_NIF_TERM argv[])
{
    (void)argc;
    struct call call = {.env = env};
    gsc_factor factor;
    double by;
    gsc_factor out;
    if (!get_struct(&call, argv[0], 1, "factor", &factor, sizeof factor) ||
        !get_double(&call, argv[1], 2, "by", &by) ||
        gsc_factor_multiply(NULL, &factor, by, &out, &call.err) != GSC_OK)
        return failed(&call);
    const ERL_NIF_TERM terms[] = {make_bytes(env, &out, sizeof out)};
    return done(&call, terms, 1);
}

static ERL_NIF_TERM nif_merge(ErlNifEnv *env, int argc, const ERL_NIF_TERM argv[])
{
    (void)argc;
    struct call call = {.env = env};
    gsc_report a;
    gsc_report b;
    gsc_report out;
    if (!get_struct(&call, argv[0], 1, "a", &a, sizeof a) ||
        !get_struct(&call, argv[1], 2, "b", &b, sizeof b) ||
        gsc_merge(NULL, &a, &b, &out, &call.err) != GSC_OK)
        return failed(&call);
    const ERL_NIF_TERM terms[] = {make_bytes(env, &out, sizeof out)};
    return done(&call, terms, 1);
}

static ERL_NIF_TERM nif_state_init(ErlNifEnv *env, int argc, const ERL_NIF_TERM argv[])
{
    (void)argc;
    struct call call = {.env = env};
    gsc_policy policy;
    gsc_state out;
    if (!get_growing(&call, argv[0], 1, "policy", &policy, sizeof policy) ||
        gsc_state_init(NULL, &policy, &out, &call.err) != GSC_OK)
        return failed(&call);
    const ERL_NIF_TERM terms[] = {make_bytes(env, &out, sizeof out)};
    return done(&call, terms, 1);
}

static ERL_NIF_TERM nif_update(ErlNifEnv *env, int argc, const ERL_NIF_TERM argv[])
{
    (void)argc;
    struct call call = {.env = env};
    gsc_policy policy;
    gsc_state state;
    gsc_report report;
    gsc_state out;
    if (!get_growing(&call, argv[0], 1, "policy", &policy, sizeof policy) ||
        !get_struct(&call, argv[1], 2, "state", &state, sizeof state) ||
        !get_struct(&call, argv[2], 3, "report", &report, sizeof report) ||
        gsc_update(NULL, &policy, &state, &report, &out, &call.err) != GSC_OK)
        return failed(&call);
    const ERL_NIF_TERM terms[] = {make_bytes(env, &out, sizeof out)};
    return done(&call, terms, 1);
}

static ERL_NIF_TERM nif_set_scale(ErlNifEnv *env, int argc, const ERL_NIF_TERM argv[])
{
    (void)argc;
    struct call call = {.env = env};
    gsc_policy policy;
    gsc_state state;
    double scale;
    gsc_state out;
    if (!get_growing(&call, argv[0], 1, "policy", &policy, sizeof policy) ||
        !get_struct(&call, argv[1], 2, "state", &state, sizeof state) ||
        !get_double(&call, argv[2], 3, "scale", &scale) ||
        gsc_set_scale(NULL, &policy, &state, &scale, &out, &call.err) != GSC_OK)
        return failed(&call);
    const ERL_NIF_TERM terms[] = {make_bytes(env, &out, sizeof out)};
    return done(&call, terms, 1);
}

static ERL_NIF_TERM nif_state_save(ErlNifEnv *env, int argc, const ERL_NIF_TERM argv[])
{
    (void)argc;
    struct call call = {.env = env};
    gsc_policy policy;
    gsc_state state;
    unsigned char bytes[GSC_SAVED_SIZE];
    uint64_t size;
    if (!get_growing(&call, argv[0], 0, "policy", &policy, sizeof policy) ||
        !get_struct(&call, argv[1], 1, "state", &state, sizeof state) ||
        gsc_state_save(&policy, &state, bytes, sizeof bytes, &size, &call.err) != GSC_OK)
        return failed(&call);
    const ERL_NIF_TERM terms[] = {make_bytes(env, bytes, size)};
    return done(&call, terms, 1);
}

static ERL_NIF_TERM nif_state_load(ErlNifEnv *env, int argc, const ERL_NIF_TERM argv[])
{
    (void)argc;
    struct call call = {.env = env};
    ErlNifBinary bytes;
    gsc_policy policy = GSC_POLICY_INIT;
    gsc_state state;
    if (!get_bytes(&call, argv[0], 0, "bytes", &bytes) ||
        gsc_state_load(bytes.data, bytes.size, &policy, &state, &call.err) != GSC_OK)
        return failed(&call);
    const ERL_NIF_TERM terms[] = {make_bytes(env, &policy, sizeof policy), make_bytes(env, &state,
                                  sizeof state)};
    return done(&call, terms, 2);
}

static ERL_NIF_TERM nif_dtype_size(ErlNifEnv *env, int argc, const ERL_NIF_TERM argv[])
{
    (void)argc;
    struct call call = {.env = env};
    uint32_t dtype;
    if (!get_uint32(&call, argv[0], 0, "dtype", &dtype))
        return failed(&call);
    return enif_make_uint(env, gsc_dtype_size(dtype));
}

static ERL_NIF_TERM nif_scale(ErlNifEnv *env, int argc, const ERL_NIF_TERM argv[])
{
    if (takes_long(env, argv[1], 0))
        return enif_schedule_nif(env, "scale", ERL_NIF_DIRTY_JOB_CPU_BOUND, nif_scale, argc, argv);
    struct call call = {.env = env};
    gsc_factor factor;
    if (!(is_nil(argv[0]) || get_struct(&call, argv[0], 1, "factor", &factor, sizeof factor)) ||
        !get_tensors(&call, argv[1], 2, "tensors") ||
        !get_outputs(&call, argv[2], 3, "out") ||
        gsc_scale(NULL, is_nil(argv[0]) ? NULL : &factor, call.in, call.out, call.n, &call.err) !=
                  GSC_OK)
        return failed(&call);
    const ERL_NIF_TERM terms[] = {call.results};
    return done(&call, terms, 1);
}

static ERL_NIF_TERM nif_check(ErlNifEnv *env, int argc, const ERL_NIF_TERM argv[])
{
    if (takes_long(env, argv[1], peek_want(env, argv[2])))
        return enif_schedule_nif(env, "check", ERL_NIF_DIRTY_JOB_CPU_BOUND, nif_check, argc, argv);
    struct call call = {.env = env};
    gsc_factor factor;
    uint32_t want;
    gsc_report report;
    if (!(is_nil(argv[0]) || get_struct(&call, argv[0], 1, "factor", &factor, sizeof factor)) ||
        !get_tensors(&call, argv[1], 2, "tensors") ||
        !get_uint32(&call, argv[2], 4, "want", &want) ||
        gsc_check(NULL, is_nil(argv[0]) ? NULL : &factor, call.in, call.n, want, &report, &call.err)
                  != GSC_OK)
        return failed(&call);
    const ERL_NIF_TERM terms[] = {make_bytes(env, &report, sizeof report)};
    return done(&call, terms, 1);
}

static ERL_NIF_TERM nif_unscale(ErlNifEnv *env, int argc, const ERL_NIF_TERM argv[])
{
    if (takes_long(env, argv[1], peek_want(env, argv[3])))
        return enif_schedule_nif(env, "unscale", ERL_NIF_DIRTY_JOB_CPU_BOUND, nif_unscale, argc,
                                 argv);
    struct call call = {.env = env};
    gsc_factor factor;
    uint32_t want;
    gsc_report report;
    if (!(is_nil(argv[0]) || get_struct(&call, argv[0], 1, "factor", &factor, sizeof factor)) ||
        !get_tensors(&call, argv[1], 2, "tensors") ||
        !get_outputs(&call, argv[2], 3, "out") ||
        !get_uint32(&call, argv[3], 5, "want", &want) ||
        gsc_unscale(NULL, is_nil(argv[0]) ? NULL : &factor, call.in, call.out, call.n, want,
                    &report, &call.err) != GSC_OK)
        return failed(&call);
    const ERL_NIF_TERM terms[] = {call.results, make_bytes(env, &report, sizeof report)};
    return done(&call, terms, 2);
}

static ERL_NIF_TERM nif_clip_value(ErlNifEnv *env, int argc, const ERL_NIF_TERM argv[])
{
    if (takes_long(env, argv[2], peek_want(env, argv[4])))
        return enif_schedule_nif(env, "clip_value", ERL_NIF_DIRTY_JOB_CPU_BOUND, nif_clip_value,
                                 argc, argv);
    struct call call = {.env = env};
    gsc_factor factor;
    double limit;
    uint32_t want;
    gsc_report report;
    if (!(is_nil(argv[0]) || get_struct(&call, argv[0], 1, "factor", &factor, sizeof factor)) ||
        !get_double(&call, argv[1], 2, "limit", &limit) ||
        !get_tensors(&call, argv[2], 3, "tensors") ||
        !get_outputs(&call, argv[3], 4, "out") ||
        !get_uint32(&call, argv[4], 6, "want", &want) ||
        gsc_clip_value(NULL, is_nil(argv[0]) ? NULL : &factor, limit, call.in, call.out, call.n,
                       want, &report, &call.err) != GSC_OK)
        return failed(&call);
    const ERL_NIF_TERM terms[] = {call.results, make_bytes(env, &report, sizeof report)};
    return done(&call, terms, 2);
}

static ERL_NIF_TERM nif_accumulate(ErlNifEnv *env, int argc, const ERL_NIF_TERM argv[])
{
    if (takes_long(env, argv[1], peek_want(env, argv[3])))
        return enif_schedule_nif(env, "accumulate", ERL_NIF_DIRTY_JOB_CPU_BOUND, nif_accumulate,
                                 argc, argv);
    struct call call = {.env = env};
    gsc_factor factor;
    uint32_t want;
    gsc_report report;
    if (!(is_nil(argv[0]) || get_struct(&call, argv[0], 1, "factor", &factor, sizeof factor)) ||
        !get_tensors(&call, argv[1], 2, "tensors") ||
        !get_sums(&call, argv[2], 3, "out") ||
        !get_uint32(&call, argv[3], 5, "want", &want) ||
        gsc_accumulate(NULL, is_nil(argv[0]) ? NULL : &factor, call.in, call.out, call.n, want,
                       &report, &call.err) != GSC_OK)
        return failed(&call);
    const ERL_NIF_TERM terms[] = {call.results, make_bytes(env, &report, sizeof report)};
    return done(&call, terms, 2);
}

static ERL_NIF_TERM nif_clip_factor(ErlNifEnv *env, int argc, const ERL_NIF_TERM argv[])
{
    (void)argc;
    struct call call = {.env = env};
    gsc_report report;
    gsc_factor factor;
    double max_norm;
    gsc_factor out;
    if (!get_struct(&call, argv[0], 1, "report", &report, sizeof report) ||
        !(is_nil(argv[1]) || get_struct(&call, argv[1], 2, "factor", &factor, sizeof factor)) ||
        !get_double(&call, argv[2], 3, "max_norm", &max_norm) ||
        gsc_clip_factor(NULL, &report, is_nil(argv[1]) ? NULL : &factor, max_norm, &out, &call.err)
                        != GSC_OK)
        return failed(&call);
    const ERL_NIF_TERM terms[] = {make_bytes(env, &out, sizeof out)};
    return done(&call, terms, 1);
}

static ERL_NIF_TERM nif_workspace_size(ErlNifEnv *env, int argc, const ERL_NIF_TERM argv[])
{
    (void)argc;
    struct call call = {.env = env};
    uint32_t want;
    uint64_t size;
    if (!get_tensors(&call, argv[0], 1, "tensors") ||
        !get_uint32(&call, argv[1], 3, "want", &want) ||
        gsc_workspace_size(NULL, call.in, call.n, want, &size, &call.err) != GSC_OK)
        return failed(&call);
    const ERL_NIF_TERM terms[] = {enif_make_uint64(env, size)};
    return done(&call, terms, 1);
}

static ErlNifFunc functions[] = {
    {"status_string", 1, nif_status_string, 0},
    {"version", 0, nif_version, 0},
    {"policy_preset", 1, nif_policy_preset, 0},
    {"policy_check", 1, nif_policy_check, 0},
    {"preset_count", 0, nif_preset_count, 0},
    {"preset_name", 1, nif_preset_name, 0},
    {"preset_summary", 1, nif_preset_summary, 0},
    {"prepare", 0, nif_prepare, 0},
    {"get_info", 0, nif_get_info, 0},
    {"factor_init", 1, nif_factor_init, 0},
    {"factor_multiply", 2, nif_factor_multiply, 0},
    {"merge", 2, nif_merge, 0},
    {"state_init", 1, nif_state_init, 0},
    {"update", 3, nif_update, 0},
    {"set_scale", 3, nif_set_scale, 0},
    {"state_save", 2, nif_state_save, 0},
    {"state_load", 1, nif_state_load, 0},
    {"dtype_size", 1, nif_dtype_size, 0},
    {"scale", 3, nif_scale, 0},
    {"check", 3, nif_check, 0},
    {"unscale", 4, nif_unscale, 0},
    {"clip_value", 5, nif_clip_value, 0},
    {"accumulate", 4, nif_accumulate, 0},
    {"clip_factor", 3, nif_clip_factor, 0},
    {"workspace_size", 2, nif_workspace_size, 0},
};

ERL_NIF_INIT(Elixir.GradScaler.Native, functions, load, NULL, upgrade, unload)
