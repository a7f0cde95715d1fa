/* SPDX-License-Identifier: MIT */
/* Generated from include/gradscaler.toml by bindings/elixir/generate.py. Do not edit. */
#include "device.h"

static ERL_NIF_TERM make_error(ErlNifEnv *env, const gsc_error *from)
{
    ERL_NIF_TERM keys[] = {
        enif_make_atom(env, "status"),
        enif_make_atom(env, "argument"),
        enif_make_atom(env, "index"),
        enif_make_atom(env, "name"),
        enif_make_atom(env, "field"),
        enif_make_atom(env, "value"),
        enif_make_atom(env, "low"),
        enif_make_atom(env, "high"),
        enif_make_atom(env, "subject_length"),
        enif_make_atom(env, "requirement_start"),
        enif_make_atom(env, "message"),
    };
    ERL_NIF_TERM values[] = {
        make_int32_t(env, from->status),
        make_int32_t(env, from->argument),
        make_int64_t(env, from->index),
        make_string(env, from->name),
        make_string(env, from->field),
        make_double(env, from->value),
        make_double(env, from->low),
        make_double(env, from->high),
        make_uint32_t(env, from->subject_length),
        make_uint32_t(env, from->requirement_start),
        make_string(env, from->message),
    };
    return make_map(env, keys, values, 11);
}

static ERL_NIF_TERM make_info(ErlNifEnv *env, const gsc_info *from)
{
    ERL_NIF_TERM keys[] = {
        enif_make_atom(env, "version"),
        enif_make_atom(env, "cpu"),
        enif_make_atom(env, "cpu_available"),
        enif_make_atom(env, "cpu_note"),
    };
    ERL_NIF_TERM values[] = {
        make_uint32_t(env, from->version),
        make_string(env, from->cpu),
        make_string(env, from->cpu_available),
        make_string(env, from->cpu_note),
    };
    return make_map(env, keys, values, 4);
}

/* {want, policy, clamp, per_tensor, histogram, loss}, or nil */
struct tensor_options {
    const gsc_tensor_options *given; /* NULL for nil */
    gsc_tensor_options c;
    gsc_policy policy;
    struct result per_tensor;
    struct result histogram;
    gsc_tensor loss;
};

static bool get_tensor_options(struct call *call, ERL_NIF_TERM term, int argument,
                               const char *name, struct tensor_options *to)
{
    const ERL_NIF_TERM *fields;
    *to = (struct tensor_options){.c = GSC_TENSOR_OPTIONS_INIT};
    if (is_nil(term))
        return true;
    if (!(fields = get_fields(call, term, argument, name, 6)) ||
        !get_uint32_t(call, fields[0], argument, "options.want", &to->c.want) ||
        !(is_nil(fields[1]) || get_growing(call, fields[1], argument, "options.policy", &to->policy, sizeof(gsc_policy), sizeof(gsc_policy))) ||
        !get_double(call, fields[2], argument, "options.clamp", &to->c.clamp) ||
        !get_result(call, fields[3], argument, "options.per_tensor", call->n * sizeof(gsc_report), &to->per_tensor) ||
        !get_result(call, fields[4], argument, "options.histogram", GSC_HISTOGRAM_LENGTH * sizeof(int64_t), &to->histogram) ||
        !(is_nil(fields[5]) || get_tensor(call, fields[5], argument, "options.loss", -1, &to->loss)))
        return false;
    if (!is_nil(fields[1]))
        to->c.policy = &to->policy;
    to->c.per_tensor = to->per_tensor.data;
    to->c.histogram = to->histogram.data;
    if (!is_nil(fields[5]))
        to->c.loss = &to->loss;
    to->given = &to->c;
    return true;
}

static ERL_NIF_TERM nif_status_string(ErlNifEnv *env, int argc, const ERL_NIF_TERM argv[])
{
    (void)argc;
    struct call call = {.env = env};
    int32_t status;
    if (!get_int32_t(&call, argv[0], 0, "status", &status))
        return failed(&call);
    return make_string(env, gsc_status_string(status));
}

static ERL_NIF_TERM nif_version(ErlNifEnv *env, int argc, const ERL_NIF_TERM argv[])
{
    (void)argc;
    (void)argv;
    return make_uint32_t(env, gsc_version());
}

static ERL_NIF_TERM nif_version_string(ErlNifEnv *env, int argc, const ERL_NIF_TERM argv[])
{
    (void)argc;
    (void)argv;
    return make_string(env, gsc_version_string());
}

static ERL_NIF_TERM nif_has(ErlNifEnv *env, int argc, const ERL_NIF_TERM argv[])
{
    (void)argc;
    struct call call = {.env = env};
    uint32_t feature;
    if (!get_uint32_t(&call, argv[0], 0, "feature", &feature))
        return failed(&call);
    return make_int32_t(env, gsc_has(feature));
}

static ERL_NIF_TERM nif_policy_preset(ErlNifEnv *env, int argc, const ERL_NIF_TERM argv[])
{
    (void)argc;
    struct call call = {.env = env};
    char name[sizeof((gsc_entry *)0)->key];
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
    if (!get_growing(&call, argv[0], 0, "policy", &policy, sizeof(gsc_policy), sizeof(gsc_policy)) ||
        gsc_policy_check(&policy, &call.err) != GSC_OK)
        return failed(&call);
    return done(&call, NULL, 0);
}

static ERL_NIF_TERM nif_policy_resolve(ErlNifEnv *env, int argc, const ERL_NIF_TERM argv[])
{
    (void)argc;
    struct call call = {.env = env};
    gsc_policy policy;
    gsc_policy out = GSC_POLICY_INIT;
    uint32_t traits;
    if (!get_growing(&call, argv[0], 0, "policy", &policy, sizeof(gsc_policy), sizeof(gsc_policy)) ||
        gsc_policy_resolve(&policy, &out, &traits, &call.err) != GSC_OK)
        return failed(&call);
    const ERL_NIF_TERM terms[] = {make_bytes(env, &out, sizeof out), make_uint32_t(env, traits)};
    return done(&call, terms, 2);
}

static ERL_NIF_TERM nif_preset_name(ErlNifEnv *env, int argc, const ERL_NIF_TERM argv[])
{
    (void)argc;
    struct call call = {.env = env};
    uint32_t index;
    if (!get_uint32_t(&call, argv[0], 0, "index", &index))
        return failed(&call);
    return make_string(env, gsc_preset_name(index));
}

static ERL_NIF_TERM nif_preset_summary(ErlNifEnv *env, int argc, const ERL_NIF_TERM argv[])
{
    (void)argc;
    struct call call = {.env = env};
    uint32_t index;
    if (!get_uint32_t(&call, argv[0], 0, "index", &index))
        return failed(&call);
    return make_string(env, gsc_preset_summary(index));
}

static ERL_NIF_TERM nif_info_get(ErlNifEnv *env, int argc, const ERL_NIF_TERM argv[])
{
    (void)argc;
    (void)argv;
    struct call call = {.env = env};
    gsc_info out = GSC_INFO_INIT;
    if (gsc_info_get(&out, &call.err) != GSC_OK)
        return failed(&call);
    const ERL_NIF_TERM terms[] = {make_info(env, &out)};
    return done(&call, terms, 1);
}

static ERL_NIF_TERM nif_factor_init(ErlNifEnv *env, int argc, const ERL_NIF_TERM argv[])
{
    (void)argc;
    struct call call = {.env = env};
    double scale;
    struct result out;
    if (!get_double(&call, argv[0], 0, "scale", &scale) ||
        !make_room(&call, sizeof(gsc_factor), &out) ||
        gsc_factor_init(scale, out.data, &call.err) != GSC_OK)
        return failed(&call);
    const ERL_NIF_TERM terms[] = {make_result(&call, &out)};
    return done(&call, terms, 1);
}

static ERL_NIF_TERM nif_factor_multiply(ErlNifEnv *env, int argc, const ERL_NIF_TERM argv[])
{
    const int flags = leaves(argv[0]);
    if (flags)
        return enif_schedule_nif(env, "factor_multiply", flags, nif_factor_multiply, argc, argv);
    struct call call = {.env = env};
    const gsc_factor *factor = NULL;
    double by;
    struct result out;
    if (!get_exec(&call, argv[0], 0, "exec") ||
        !(factor = get_values(&call, argv[1], 1, "factor", sizeof *factor, NULL)) ||
        !get_double(&call, argv[2], 2, "by", &by) ||
        !make_room(&call, sizeof(gsc_factor), &out) ||
        gsc_factor_multiply(call.exec, factor, by, out.data, &call.err) != GSC_OK || !finish(&call))
        return failed(&call);
    const ERL_NIF_TERM terms[] = {make_result(&call, &out)};
    return done(&call, terms, 1);
}

static ERL_NIF_TERM nif_report_from_number(ErlNifEnv *env, int argc, const ERL_NIF_TERM argv[])
{
    (void)argc;
    struct call call = {.env = env};
    double number;
    struct result out;
    if (!get_double(&call, argv[0], 0, "number", &number) ||
        !make_room(&call, sizeof(gsc_report), &out) ||
        gsc_report_from_number(number, out.data, &call.err) != GSC_OK)
        return failed(&call);
    const ERL_NIF_TERM terms[] = {make_result(&call, &out)};
    return done(&call, terms, 1);
}

static ERL_NIF_TERM nif_report_from_flag(ErlNifEnv *env, int argc, const ERL_NIF_TERM argv[])
{
    (void)argc;
    struct call call = {.env = env};
    int32_t overflow;
    struct result out;
    if (!get_int32_t(&call, argv[0], 0, "overflow", &overflow) ||
        !make_room(&call, sizeof(gsc_report), &out) ||
        gsc_report_from_flag(overflow, out.data, &call.err) != GSC_OK)
        return failed(&call);
    const ERL_NIF_TERM terms[] = {make_result(&call, &out)};
    return done(&call, terms, 1);
}

static ERL_NIF_TERM nif_report_merge(ErlNifEnv *env, int argc, const ERL_NIF_TERM argv[])
{
    const int flags = leaves(argv[0]);
    if (flags)
        return enif_schedule_nif(env, "report_merge", flags, nif_report_merge, argc, argv);
    struct call call = {.env = env};
    const gsc_report *reports = NULL;
    uint64_t n = NOT_COUNTED;
    uint32_t kind;
    gsc_policy policy;
    struct result out;
    if (!get_exec(&call, argv[0], 0, "exec") ||
        !(reports = get_values(&call, argv[1], 1, "reports", sizeof *reports, &n)) ||
        !get_uint32_t(&call, argv[2], 3, "kind", &kind) ||
        !(is_nil(argv[3]) || get_growing(&call, argv[3], 4, "policy", &policy, sizeof(gsc_policy), sizeof(gsc_policy))) ||
        !make_room(&call, sizeof(gsc_report), &out) ||
        gsc_report_merge(call.exec, reports, counted(n), kind, is_nil(argv[3]) ? NULL : &policy,
                         out.data, &call.err) != GSC_OK || !finish(&call))
        return failed(&call);
    const ERL_NIF_TERM terms[] = {make_result(&call, &out)};
    return done(&call, terms, 1);
}

static ERL_NIF_TERM nif_factor_clip_grad_norm(ErlNifEnv *env, int argc, const ERL_NIF_TERM argv[])
{
    const int flags = leaves(argv[0]);
    if (flags)
        return enif_schedule_nif(env, "factor_clip_grad_norm", flags, nif_factor_clip_grad_norm,
                                 argc, argv);
    struct call call = {.env = env};
    const gsc_factor *factor = NULL;
    const gsc_report *report = NULL;
    double max_norm;
    struct result out;
    if (!get_exec(&call, argv[0], 0, "exec") ||
        !(is_nil(argv[1]) || (factor = get_values(&call, argv[1], 1, "factor", sizeof *factor, NULL))) ||
        !(report = get_values(&call, argv[2], 2, "report", sizeof *report, NULL)) ||
        !get_double(&call, argv[3], 3, "max_norm", &max_norm) ||
        !make_room(&call, sizeof(gsc_factor), &out) ||
        gsc_factor_clip_grad_norm(call.exec, factor, report, max_norm, out.data, &call.err) !=
                                  GSC_OK || !finish(&call))
        return failed(&call);
    const ERL_NIF_TERM terms[] = {make_result(&call, &out)};
    return done(&call, terms, 1);
}

static ERL_NIF_TERM nif_state_init(ErlNifEnv *env, int argc, const ERL_NIF_TERM argv[])
{
    const int flags = leaves(argv[0]);
    if (flags)
        return enif_schedule_nif(env, "state_init", flags, nif_state_init, argc, argv);
    struct call call = {.env = env};
    gsc_policy policy;
    struct result out;
    if (!get_exec(&call, argv[0], 0, "exec") ||
        !get_growing(&call, argv[1], 1, "policy", &policy, sizeof(gsc_policy), sizeof(gsc_policy)) ||
        !make_room(&call, sizeof(gsc_state), &out) ||
        gsc_state_init(call.exec, &policy, out.data, &call.err) != GSC_OK || !finish(&call))
        return failed(&call);
    const ERL_NIF_TERM terms[] = {make_result(&call, &out)};
    return done(&call, terms, 1);
}

static ERL_NIF_TERM nif_state_init_from(ErlNifEnv *env, int argc, const ERL_NIF_TERM argv[])
{
    const int flags = leaves(argv[0]);
    if (flags)
        return enif_schedule_nif(env, "state_init_from", flags, nif_state_init_from, argc, argv);
    struct call call = {.env = env};
    gsc_policy policy;
    const gsc_state *from = NULL;
    struct result out;
    if (!get_exec(&call, argv[0], 0, "exec") ||
        !get_growing(&call, argv[1], 1, "policy", &policy, sizeof(gsc_policy), sizeof(gsc_policy)) ||
        !(from = get_values(&call, argv[2], 2, "from", sizeof *from, NULL)) ||
        !make_room(&call, sizeof(gsc_state), &out) ||
        gsc_state_init_from(call.exec, &policy, from, out.data, &call.err) != GSC_OK ||
                            !finish(&call))
        return failed(&call);
    const ERL_NIF_TERM terms[] = {make_result(&call, &out)};
    return done(&call, terms, 1);
}

static ERL_NIF_TERM nif_state_update(ErlNifEnv *env, int argc, const ERL_NIF_TERM argv[])
{
    const int flags = leaves(argv[0]);
    if (flags)
        return enif_schedule_nif(env, "state_update", flags, nif_state_update, argc, argv);
    struct call call = {.env = env};
    gsc_policy policy;
    const gsc_state *state = NULL;
    const gsc_report *report = NULL;
    struct result out;
    if (!get_exec(&call, argv[0], 0, "exec") ||
        !get_growing(&call, argv[1], 1, "policy", &policy, sizeof(gsc_policy), sizeof(gsc_policy)) ||
        !(state = get_values(&call, argv[2], 2, "state", sizeof *state, NULL)) ||
        !(report = get_values(&call, argv[3], 3, "report", sizeof *report, NULL)) ||
        !make_room(&call, sizeof(gsc_state), &out) ||
        gsc_state_update(call.exec, &policy, state, report, out.data, &call.err) != GSC_OK ||
                         !finish(&call))
        return failed(&call);
    const ERL_NIF_TERM terms[] = {make_result(&call, &out)};
    return done(&call, terms, 1);
}

static ERL_NIF_TERM nif_state_combine_decisions(ErlNifEnv *env, int argc, const ERL_NIF_TERM argv[])
{
    const int flags = leaves(argv[0]);
    if (flags)
        return enif_schedule_nif(env, "state_combine_decisions", flags, nif_state_combine_decisions,
                                 argc, argv);
    struct call call = {.env = env};
    const gsc_state *state = NULL;
    const gsc_state *other = NULL;
    struct result out;
    if (!get_exec(&call, argv[0], 0, "exec") ||
        !(state = get_values(&call, argv[1], 1, "state", sizeof *state, NULL)) ||
        !(other = get_values(&call, argv[2], 2, "other", sizeof *other, NULL)) ||
        !make_room(&call, sizeof(gsc_state), &out) ||
        gsc_state_combine_decisions(call.exec, state, other, out.data, &call.err) != GSC_OK ||
                                    !finish(&call))
        return failed(&call);
    const ERL_NIF_TERM terms[] = {make_result(&call, &out)};
    return done(&call, terms, 1);
}

static ERL_NIF_TERM nif_state_reason(ErlNifEnv *env, int argc, const ERL_NIF_TERM argv[])
{
    (void)argc;
    struct call call = {.env = env};
    const gsc_state *state = NULL;
    const gsc_report *report = NULL;
    const gsc_evidence *evidence = NULL;
    const gsc_report *per_tensor = NULL;
    uint64_t n = NOT_COUNTED;
    const char *const *names = NULL;
    const uint64_t *order = NULL;
    struct result out;
    if (!(state = get_values(&call, argv[0], 0, "state", sizeof *state, NULL)) ||
        !(is_nil(argv[1]) || (report = get_values(&call, argv[1], 1, "report", sizeof *report, NULL))) ||
        !(is_nil(argv[2]) || (evidence = get_values(&call, argv[2], 2, "evidence", sizeof *evidence, NULL))) ||
        !(is_nil(argv[3]) || (per_tensor = get_values(&call, argv[3], 3, "per_tensor", sizeof *per_tensor, &n))) ||
        !(is_nil(argv[4]) || (names = get_names(&call, argv[4], 4, "names", &n))) ||
        !(is_nil(argv[5]) || (order = get_values(&call, argv[5], 5, "order", sizeof *order, &n))) ||
        !make_room(&call, sizeof(gsc_reason), &out) ||
        gsc_state_reason(state, report, evidence, per_tensor, names, order, counted(n), out.data,
                         &call.err) != GSC_OK)
        return failed(&call);
    const ERL_NIF_TERM terms[] = {make_result(&call, &out)};
    return done(&call, terms, 1);
}

static ERL_NIF_TERM nif_factor_clip_outlier(ErlNifEnv *env, int argc, const ERL_NIF_TERM argv[])
{
    const int flags = leaves(argv[0]);
    if (flags)
        return enif_schedule_nif(env, "factor_clip_outlier", flags, nif_factor_clip_outlier, argc,
                                 argv);
    struct call call = {.env = env};
    const gsc_factor *factor = NULL;
    const gsc_state *state = NULL;
    struct result out;
    if (!get_exec(&call, argv[0], 0, "exec") ||
        !(is_nil(argv[1]) || (factor = get_values(&call, argv[1], 1, "factor", sizeof *factor, NULL))) ||
        !(state = get_values(&call, argv[2], 2, "state", sizeof *state, NULL)) ||
        !make_room(&call, sizeof(gsc_factor), &out) ||
        gsc_factor_clip_outlier(call.exec, factor, state, out.data, &call.err) != GSC_OK ||
                                !finish(&call))
        return failed(&call);
    const ERL_NIF_TERM terms[] = {make_result(&call, &out)};
    return done(&call, terms, 1);
}

static ERL_NIF_TERM nif_state_save(ErlNifEnv *env, int argc, const ERL_NIF_TERM argv[])
{
    (void)argc;
    struct call call = {.env = env};
    gsc_policy policy;
    const gsc_state *state = NULL;
    struct result bytes;
    uint64_t size;
    if (!get_growing(&call, argv[0], 0, "policy", &policy, sizeof(gsc_policy), sizeof(gsc_policy)) ||
        !(state = get_values(&call, argv[1], 1, "state", sizeof *state, NULL)) ||
        gsc_state_save(&policy, state, NULL, 0, &size, &call.err) != GSC_OK ||
        !make_room(&call, size, &bytes) ||
        gsc_state_save(&policy, state, bytes.data, size, &size, &call.err) != GSC_OK)
        return failed(&call);
    const ERL_NIF_TERM terms[] = {make_result(&call, &bytes)};
    return done(&call, terms, 1);
}

static ERL_NIF_TERM nif_state_load(ErlNifEnv *env, int argc, const ERL_NIF_TERM argv[])
{
    (void)argc;
    struct call call = {.env = env};
    ErlNifBinary bytes;
    gsc_policy policy = GSC_POLICY_INIT;
    struct result state;
    if (!get_bytes(&call, argv[0], 0, "bytes", &bytes) ||
        !make_room(&call, sizeof(gsc_state), &state) ||
        gsc_state_load(bytes.data, bytes.size, &policy, state.data, &call.err) != GSC_OK)
        return failed(&call);
    const ERL_NIF_TERM terms[] = {make_bytes(env, &policy, sizeof policy), make_result(&call,
                                  &state)};
    return done(&call, terms, 2);
}

static ERL_NIF_TERM nif_state_digest(ErlNifEnv *env, int argc, const ERL_NIF_TERM argv[])
{
    (void)argc;
    struct call call = {.env = env};
    gsc_policy policy;
    const gsc_state *state = NULL;
    uint64_t digest;
    if (!(is_nil(argv[0]) || get_growing(&call, argv[0], 0, "policy", &policy, sizeof(gsc_policy), sizeof(gsc_policy))) ||
        !(is_nil(argv[1]) || (state = get_values(&call, argv[1], 1, "state", sizeof *state, NULL))) ||
        gsc_state_digest(is_nil(argv[0]) ? NULL : &policy, state, &digest, &call.err) != GSC_OK)
        return failed(&call);
    const ERL_NIF_TERM terms[] = {make_uint64_t(env, digest)};
    return done(&call, terms, 1);
}

static ERL_NIF_TERM nif_report_set_rank(ErlNifEnv *env, int argc, const ERL_NIF_TERM argv[])
{
    const int flags = leaves(argv[0]);
    if (flags)
        return enif_schedule_nif(env, "report_set_rank", flags, nif_report_set_rank, argc, argv);
    struct call call = {.env = env};
    const gsc_report *report = NULL;
    gsc_policy policy;
    const gsc_state *state = NULL;
    uint32_t rank;
    struct result out;
    if (!get_exec(&call, argv[0], 0, "exec") ||
        !(report = get_values(&call, argv[1], 1, "report", sizeof *report, NULL)) ||
        !(is_nil(argv[2]) || get_growing(&call, argv[2], 2, "policy", &policy, sizeof(gsc_policy), sizeof(gsc_policy))) ||
        !(is_nil(argv[3]) || (state = get_values(&call, argv[3], 3, "state", sizeof *state, NULL))) ||
        !get_uint32_t(&call, argv[4], 4, "rank", &rank) ||
        !make_room(&call, sizeof(gsc_report), &out) ||
        gsc_report_set_rank(call.exec, report, is_nil(argv[2]) ? NULL : &policy, state, rank,
                            out.data, &call.err) != GSC_OK || !finish(&call))
        return failed(&call);
    const ERL_NIF_TERM terms[] = {make_result(&call, &out)};
    return done(&call, terms, 1);
}

static ERL_NIF_TERM nif_format_name(ErlNifEnv *env, int argc, const ERL_NIF_TERM argv[])
{
    (void)argc;
    struct call call = {.env = env};
    uint32_t index;
    if (!get_uint32_t(&call, argv[0], 0, "index", &index))
        return failed(&call);
    return make_string(env, gsc_format_name(index));
}

static ERL_NIF_TERM nif_format_summary(ErlNifEnv *env, int argc, const ERL_NIF_TERM argv[])
{
    (void)argc;
    struct call call = {.env = env};
    uint32_t index;
    if (!get_uint32_t(&call, argv[0], 0, "index", &index))
        return failed(&call);
    return make_string(env, gsc_format_summary(index));
}

static ERL_NIF_TERM nif_format_keys(ErlNifEnv *env, int argc, const ERL_NIF_TERM argv[])
{
    (void)argc;
    struct call call = {.env = env};
    char format[sizeof((gsc_entry *)0)->key];
    struct result keys;
    uint64_t keys_count;
    if (!get_string(&call, argv[0], 0, "format", format, sizeof format) ||
        gsc_format_keys(format, NULL, 0, &keys_count, &call.err) != GSC_OK ||
        !make_room(&call, keys_count * sizeof(gsc_format_key), &keys) ||
        gsc_format_keys(format, keys.data, keys_count, &keys_count, &call.err) != GSC_OK)
        return failed(&call);
    const ERL_NIF_TERM terms[] = {make_result(&call, &keys)};
    return done(&call, terms, 1);
}

static ERL_NIF_TERM nif_state_import(ErlNifEnv *env, int argc, const ERL_NIF_TERM argv[])
{
    (void)argc;
    struct call call = {.env = env};
    char format[sizeof((gsc_entry *)0)->key];
    char prefix[sizeof((gsc_entry *)0)->key];
    const gsc_entry *entries = NULL;
    uint64_t entries_count = NOT_COUNTED;
    gsc_policy policy;
    gsc_policy out_policy = GSC_POLICY_INIT;
    struct result out_state;
    struct result notes;
    uint64_t notes_count;
    if (!(is_nil(argv[0]) || get_string(&call, argv[0], 0, "format", format, sizeof format)) ||
        !(is_nil(argv[1]) || get_string(&call, argv[1], 1, "prefix", prefix, sizeof prefix)) ||
        !(entries = get_values(&call, argv[2], 2, "entries", sizeof *entries, &entries_count)) ||
        !(is_nil(argv[3]) || get_growing(&call, argv[3], 4, "policy", &policy, sizeof(gsc_policy), sizeof(gsc_policy))) ||
        !make_room(&call, sizeof(gsc_state), &out_state) ||
        gsc_state_import(is_nil(argv[0]) ? NULL : format, is_nil(argv[1]) ? NULL : prefix, entries,
                         counted(entries_count), is_nil(argv[3]) ? NULL : &policy, &out_policy,
                         out_state.data, NULL, 0, &notes_count, &call.err) != GSC_OK ||
        !make_room(&call, notes_count * sizeof(gsc_note), &notes) ||
        gsc_state_import(is_nil(argv[0]) ? NULL : format, is_nil(argv[1]) ? NULL : prefix, entries,
                         counted(entries_count), is_nil(argv[3]) ? NULL : &policy, &out_policy,
                         out_state.data, notes.data, notes_count, &notes_count, &call.err) !=
                         GSC_OK)
        return failed(&call);
    const ERL_NIF_TERM terms[] = {make_bytes(env, &out_policy, sizeof out_policy),
                                  make_result(&call, &out_state), make_result(&call, &notes)};
    return done(&call, terms, 3);
}

static ERL_NIF_TERM nif_state_export(ErlNifEnv *env, int argc, const ERL_NIF_TERM argv[])
{
    (void)argc;
    struct call call = {.env = env};
    char format[sizeof((gsc_entry *)0)->key];
    char prefix[sizeof((gsc_entry *)0)->key];
    gsc_policy policy;
    const gsc_state *state = NULL;
    struct result entries;
    uint64_t entries_count;
    struct result notes;
    uint64_t notes_count;
    if (!get_string(&call, argv[0], 0, "format", format, sizeof format) ||
        !(is_nil(argv[1]) || get_string(&call, argv[1], 1, "prefix", prefix, sizeof prefix)) ||
        !get_growing(&call, argv[2], 2, "policy", &policy, sizeof(gsc_policy), sizeof(gsc_policy)) ||
        !(state = get_values(&call, argv[3], 3, "state", sizeof *state, NULL)) ||
        gsc_state_export(format, is_nil(argv[1]) ? NULL : prefix, &policy, state, NULL, 0,
                         &entries_count, NULL, 0, &notes_count, &call.err) != GSC_OK ||
        !make_room(&call, entries_count * sizeof(gsc_entry), &entries) ||
        !make_room(&call, notes_count * sizeof(gsc_note), &notes) ||
        gsc_state_export(format, is_nil(argv[1]) ? NULL : prefix, &policy, state, entries.data,
                         entries_count, &entries_count, notes.data, notes_count, &notes_count,
                         &call.err) != GSC_OK)
        return failed(&call);
    const ERL_NIF_TERM terms[] = {make_result(&call, &entries), make_result(&call, &notes)};
    return done(&call, terms, 2);
}

static ERL_NIF_TERM nif_policy_import(ErlNifEnv *env, int argc, const ERL_NIF_TERM argv[])
{
    (void)argc;
    struct call call = {.env = env};
    char format[sizeof((gsc_entry *)0)->key];
    char prefix[sizeof((gsc_entry *)0)->key];
    const gsc_entry *entries = NULL;
    uint64_t entries_count = NOT_COUNTED;
    gsc_policy policy;
    gsc_policy out_policy = GSC_POLICY_INIT;
    struct result notes;
    uint64_t notes_count;
    if (!get_string(&call, argv[0], 0, "format", format, sizeof format) ||
        !(is_nil(argv[1]) || get_string(&call, argv[1], 1, "prefix", prefix, sizeof prefix)) ||
        !(entries = get_values(&call, argv[2], 2, "entries", sizeof *entries, &entries_count)) ||
        !(is_nil(argv[3]) || get_growing(&call, argv[3], 4, "policy", &policy, sizeof(gsc_policy), sizeof(gsc_policy))) ||
        gsc_policy_import(format, is_nil(argv[1]) ? NULL : prefix, entries, counted(entries_count),
                          is_nil(argv[3]) ? NULL : &policy, &out_policy, NULL, 0, &notes_count,
                          &call.err) != GSC_OK ||
        !make_room(&call, notes_count * sizeof(gsc_note), &notes) ||
        gsc_policy_import(format, is_nil(argv[1]) ? NULL : prefix, entries, counted(entries_count),
                          is_nil(argv[3]) ? NULL : &policy, &out_policy, notes.data, notes_count,
                          &notes_count, &call.err) != GSC_OK)
        return failed(&call);
    const ERL_NIF_TERM terms[] = {make_bytes(env, &out_policy, sizeof out_policy),
                                  make_result(&call, &notes)};
    return done(&call, terms, 2);
}

static ERL_NIF_TERM nif_state_metrics(ErlNifEnv *env, int argc, const ERL_NIF_TERM argv[])
{
    (void)argc;
    struct call call = {.env = env};
    gsc_policy policy;
    const gsc_state *state = NULL;
    const gsc_report *report = NULL;
    struct result entries;
    uint64_t entries_count;
    if (!get_growing(&call, argv[0], 0, "policy", &policy, sizeof(gsc_policy), sizeof(gsc_policy)) ||
        !(state = get_values(&call, argv[1], 1, "state", sizeof *state, NULL)) ||
        !(is_nil(argv[2]) || (report = get_values(&call, argv[2], 2, "report", sizeof *report, NULL))) ||
        gsc_state_metrics(&policy, state, report, NULL, 0, &entries_count, &call.err) != GSC_OK ||
        !make_room(&call, entries_count * sizeof(gsc_entry), &entries) ||
        gsc_state_metrics(&policy, state, report, entries.data, entries_count, &entries_count,
                          &call.err) != GSC_OK)
        return failed(&call);
    const ERL_NIF_TERM terms[] = {make_result(&call, &entries)};
    return done(&call, terms, 1);
}

static ERL_NIF_TERM nif_state_diagnose(ErlNifEnv *env, int argc, const ERL_NIF_TERM argv[])
{
    (void)argc;
    struct call call = {.env = env};
    gsc_policy policy;
    const gsc_state *state = NULL;
    const gsc_report *report = NULL;
    const gsc_report *per_tensor = NULL;
    uint64_t per_tensor_count = NOT_COUNTED;
    uint64_t steps;
    uint64_t planned_steps;
    struct result notes;
    uint64_t notes_count;
    if (!get_growing(&call, argv[0], 0, "policy", &policy, sizeof(gsc_policy), sizeof(gsc_policy)) ||
        !(state = get_values(&call, argv[1], 1, "state", sizeof *state, NULL)) ||
        !(is_nil(argv[2]) || (report = get_values(&call, argv[2], 2, "report", sizeof *report, NULL))) ||
        !(is_nil(argv[3]) || (per_tensor = get_values(&call, argv[3], 3, "per_tensor", sizeof *per_tensor, &per_tensor_count))) ||
        !get_uint64_t(&call, argv[4], 5, "steps", &steps) ||
        !get_uint64_t(&call, argv[5], 6, "planned_steps", &planned_steps) ||
        gsc_state_diagnose(&policy, state, report, per_tensor, counted(per_tensor_count), steps,
                           planned_steps, NULL, 0, &notes_count, &call.err) != GSC_OK ||
        !make_room(&call, notes_count * sizeof(gsc_note), &notes) ||
        gsc_state_diagnose(&policy, state, report, per_tensor, counted(per_tensor_count), steps,
                           planned_steps, notes.data, notes_count, &notes_count, &call.err) !=
                           GSC_OK)
        return failed(&call);
    const ERL_NIF_TERM terms[] = {make_result(&call, &notes)};
    return done(&call, terms, 1);
}

static ERL_NIF_TERM nif_history_start(ErlNifEnv *env, int argc, const ERL_NIF_TERM argv[])
{
    (void)argc;
    struct call call = {.env = env};
    gsc_policy policy;
    char preset[sizeof((gsc_entry *)0)->key];
    const gsc_state *state = NULL;
    const char *const *names = NULL;
    uint64_t n = NOT_COUNTED;
    uint64_t step;
    uint32_t rank;
    double time;
    char run[sizeof((gsc_entry *)0)->key];
    struct result bytes;
    uint64_t size;
    if (!get_growing(&call, argv[0], 0, "policy", &policy, sizeof(gsc_policy), sizeof(gsc_policy)) ||
        !(is_nil(argv[1]) || get_string(&call, argv[1], 1, "preset", preset, sizeof preset)) ||
        !(state = get_values(&call, argv[2], 2, "state", sizeof *state, NULL)) ||
        !(is_nil(argv[3]) || (names = get_names(&call, argv[3], 3, "names", &n))) ||
        !get_uint64_t(&call, argv[4], 5, "step", &step) ||
        !get_uint32_t(&call, argv[5], 6, "rank", &rank) ||
        !get_double(&call, argv[6], 7, "time", &time) ||
        !(is_nil(argv[7]) || get_string(&call, argv[7], 8, "run", run, sizeof run)) ||
        gsc_history_start(&policy, is_nil(argv[1]) ? NULL : preset, state, names, counted(n), step,
                          rank, time, is_nil(argv[7]) ? NULL : run, NULL, 0, &size, &call.err) !=
                          GSC_OK ||
        !make_room(&call, size, &bytes) ||
        gsc_history_start(&policy, is_nil(argv[1]) ? NULL : preset, state, names, counted(n), step,
                          rank, time, is_nil(argv[7]) ? NULL : run, bytes.data, size, &size,
                          &call.err) != GSC_OK)
        return failed(&call);
    const ERL_NIF_TERM terms[] = {make_result(&call, &bytes)};
    return done(&call, terms, 1);
}

static ERL_NIF_TERM nif_history_line(ErlNifEnv *env, int argc, const ERL_NIF_TERM argv[])
{
    (void)argc;
    struct call call = {.env = env};
    const gsc_state *state = NULL;
    const gsc_report *report = NULL;
    const gsc_reason *reason = NULL;
    const gsc_report *per_tensor = NULL;
    uint64_t n = NOT_COUNTED;
    const char *const *names = NULL;
    uint64_t step;
    double time;
    char run[sizeof((gsc_entry *)0)->key];
    struct result bytes;
    uint64_t size;
    if (!(state = get_values(&call, argv[0], 0, "state", sizeof *state, NULL)) ||
        !(is_nil(argv[1]) || (report = get_values(&call, argv[1], 1, "report", sizeof *report, NULL))) ||
        !(is_nil(argv[2]) || (reason = get_values(&call, argv[2], 2, "reason", sizeof *reason, NULL))) ||
        !(is_nil(argv[3]) || (per_tensor = get_values(&call, argv[3], 3, "per_tensor", sizeof *per_tensor, &n))) ||
        !(is_nil(argv[4]) || (names = get_names(&call, argv[4], 4, "names", &n))) ||
        !get_uint64_t(&call, argv[5], 6, "step", &step) ||
        !get_double(&call, argv[6], 7, "time", &time) ||
        !(is_nil(argv[7]) || get_string(&call, argv[7], 8, "run", run, sizeof run)) ||
        gsc_history_line(state, report, reason, per_tensor, names, counted(n), step, time,
                         is_nil(argv[7]) ? NULL : run, NULL, 0, &size, &call.err) != GSC_OK ||
        !make_room(&call, size, &bytes) ||
        gsc_history_line(state, report, reason, per_tensor, names, counted(n), step, time,
                         is_nil(argv[7]) ? NULL : run, bytes.data, size, &size, &call.err) !=
                         GSC_OK)
        return failed(&call);
    const ERL_NIF_TERM terms[] = {make_result(&call, &bytes)};
    return done(&call, terms, 1);
}

static ERL_NIF_TERM nif_dtype_name(ErlNifEnv *env, int argc, const ERL_NIF_TERM argv[])
{
    (void)argc;
    struct call call = {.env = env};
    uint32_t dtype;
    if (!get_uint32_t(&call, argv[0], 0, "dtype", &dtype))
        return failed(&call);
    return make_string(env, gsc_dtype_name(dtype));
}

static ERL_NIF_TERM nif_dtype_bits(ErlNifEnv *env, int argc, const ERL_NIF_TERM argv[])
{
    (void)argc;
    struct call call = {.env = env};
    uint32_t dtype;
    if (!get_uint32_t(&call, argv[0], 0, "dtype", &dtype))
        return failed(&call);
    return make_uint32_t(env, gsc_dtype_bits(dtype));
}

static ERL_NIF_TERM nif_dtype_size(ErlNifEnv *env, int argc, const ERL_NIF_TERM argv[])
{
    (void)argc;
    struct call call = {.env = env};
    uint32_t dtype;
    if (!get_uint32_t(&call, argv[0], 0, "dtype", &dtype))
        return failed(&call);
    return make_uint32_t(env, gsc_dtype_size(dtype));
}

static ERL_NIF_TERM nif_measure(ErlNifEnv *env, int argc, const ERL_NIF_TERM argv[])
{
    const int flags = leaves(argv[0]);
    if (flags)
        return enif_schedule_nif(env, "measure", flags, nif_measure, argc, argv);
    struct call call = {.env = env};
    const gsc_factor *factor = NULL;
    struct tensor_options options;
    struct result report;
    if (!get_exec(&call, argv[0], 0, "exec") ||
        !(is_nil(argv[1]) || (factor = get_values(&call, argv[1], 1, "factor", sizeof *factor, NULL))) ||
        !get_tensors(&call, argv[2], 2, "tensors") ||
        !get_tensor_options(&call, argv[3], 4, "options", &options) ||
        !make_room(&call, sizeof(gsc_report), &report) ||
        !get_workspace(&call, options.given) ||
        gsc_measure(call.exec, factor, call.in, call.n, options.given, report.data, &call.err) !=
                    GSC_OK || !finish(&call))
        return failed(&call);
    const ERL_NIF_TERM terms[] = {make_result(&call, &report), make_result(&call,
                                  &options.per_tensor), make_result(&call, &options.histogram)};
    return done(&call, terms, 3);
}

static ERL_NIF_TERM nif_unscale(ErlNifEnv *env, int argc, const ERL_NIF_TERM argv[])
{
    const int flags = leaves(argv[0]);
    if (flags)
        return enif_schedule_nif(env, "unscale", flags, nif_unscale, argc, argv);
    struct call call = {.env = env};
    const gsc_factor *factor = NULL;
    struct tensor_options options;
    struct result report;
    if (!get_exec(&call, argv[0], 0, "exec") ||
        !(is_nil(argv[1]) || (factor = get_values(&call, argv[1], 1, "factor", sizeof *factor, NULL))) ||
        !get_tensors(&call, argv[2], 2, "tensors") ||
        !get_outputs(&call, argv[3], 3, "out", false) ||
        !get_tensor_options(&call, argv[4], 5, "options", &options) ||
        !make_room(&call, sizeof(gsc_report), &report) ||
        !get_workspace(&call, options.given) ||
        gsc_unscale(call.exec, factor, call.in, call.out, call.n, options.given, report.data,
                    &call.err) != GSC_OK || !finish(&call))
        return failed(&call);
    const ERL_NIF_TERM terms[] = {make_results(&call), make_result(&call, &report),
                                  make_result(&call, &options.per_tensor), make_result(&call,
                                  &options.histogram)};
    return done(&call, terms, 4);
}

static ERL_NIF_TERM nif_scale(ErlNifEnv *env, int argc, const ERL_NIF_TERM argv[])
{
    const int flags = leaves(argv[0]);
    if (flags)
        return enif_schedule_nif(env, "scale", flags, nif_scale, argc, argv);
    struct call call = {.env = env};
    const gsc_factor *factor = NULL;
    struct tensor_options options;
    struct result report;
    if (!get_exec(&call, argv[0], 0, "exec") ||
        !(is_nil(argv[1]) || (factor = get_values(&call, argv[1], 1, "factor", sizeof *factor, NULL))) ||
        !get_tensors(&call, argv[2], 2, "tensors") ||
        !get_outputs(&call, argv[3], 3, "out", false) ||
        !get_tensor_options(&call, argv[4], 5, "options", &options) ||
        !make_room(&call, sizeof(gsc_report), &report) ||
        !get_workspace(&call, options.given) ||
        gsc_scale(call.exec, factor, call.in, call.out, call.n, options.given, report.data,
                  &call.err) != GSC_OK || !finish(&call))
        return failed(&call);
    const ERL_NIF_TERM terms[] = {make_results(&call), make_result(&call, &report),
                                  make_result(&call, &options.per_tensor), make_result(&call,
                                  &options.histogram)};
    return done(&call, terms, 4);
}

static ERL_NIF_TERM nif_unscale_accumulate(ErlNifEnv *env, int argc, const ERL_NIF_TERM argv[])
{
    const int flags = leaves(argv[0]);
    if (flags)
        return enif_schedule_nif(env, "unscale_accumulate", flags, nif_unscale_accumulate, argc,
                                 argv);
    struct call call = {.env = env};
    const gsc_factor *factor = NULL;
    struct tensor_options options;
    struct result report;
    if (!get_exec(&call, argv[0], 0, "exec") ||
        !(is_nil(argv[1]) || (factor = get_values(&call, argv[1], 1, "factor", sizeof *factor, NULL))) ||
        !get_tensors(&call, argv[2], 2, "tensors") ||
        !get_outputs(&call, argv[3], 3, "out", true) ||
        !get_tensor_options(&call, argv[4], 5, "options", &options) ||
        !make_room(&call, sizeof(gsc_report), &report) ||
        !get_workspace(&call, options.given) ||
        gsc_unscale_accumulate(call.exec, factor, call.in, call.out, call.n, options.given,
                               report.data, &call.err) != GSC_OK || !finish(&call))
        return failed(&call);
    const ERL_NIF_TERM terms[] = {make_results(&call), make_result(&call, &report),
                                  make_result(&call, &options.per_tensor), make_result(&call,
                                  &options.histogram)};
    return done(&call, terms, 4);
}

static ERL_NIF_TERM nif_cuda_start(ErlNifEnv *env, int argc, const ERL_NIF_TERM argv[])
{
    (void)argc;
    (void)argv;
    struct call call = {.env = env};
    if (gsc_cuda_start(&call.err) != GSC_OK)
        return failed(&call);
    return done(&call, NULL, 0);
}

static ERL_NIF_TERM nif_cuda_log(ErlNifEnv *env, int argc, const ERL_NIF_TERM argv[])
{
    (void)argc;
    (void)argv;
    return make_string(env, gsc_cuda_log());
}

static ERL_NIF_TERM nif_exec_wait(ErlNifEnv *env, int argc, const ERL_NIF_TERM argv[])
{
    const int flags = leaves(argv[0]);
    if (flags)
        return enif_schedule_nif(env, "exec_wait", flags, nif_exec_wait, argc, argv);
    struct call call = {.env = env};
    if (!get_exec(&call, argv[0], 0, "exec") ||
        gsc_exec_wait(call.exec, &call.err) != GSC_OK || !finish(&call))
        return failed(&call);
    return done(&call, NULL, 0);
}

static ERL_NIF_TERM nif_workspace_size(ErlNifEnv *env, int argc, const ERL_NIF_TERM argv[])
{
    const int flags = leaves(argv[0]);
    if (flags)
        return enif_schedule_nif(env, "workspace_size", flags, nif_workspace_size, argc, argv);
    struct call call = {.env = env};
    struct tensor_options options;
    uint64_t size;
    if (!get_exec(&call, argv[0], 0, "exec") ||
        !get_tensors(&call, argv[1], 1, "tensors") ||
        !get_tensor_options(&call, argv[2], 3, "options", &options) ||
        gsc_workspace_size(call.exec, call.in, call.n, options.given, &size, &call.err) != GSC_OK ||
                           !finish(&call))
        return failed(&call);
    const ERL_NIF_TERM terms[] = {make_uint64_t(env, size)};
    return done(&call, terms, 1);
}

static ERL_NIF_TERM nif_comparison_name(ErlNifEnv *env, int argc, const ERL_NIF_TERM argv[])
{
    (void)argc;
    struct call call = {.env = env};
    uint32_t index;
    if (!get_uint32_t(&call, argv[0], 0, "index", &index))
        return failed(&call);
    return make_string(env, gsc_comparison_name(index));
}

static ERL_NIF_TERM nif_exec_compare(ErlNifEnv *env, int argc, const ERL_NIF_TERM argv[])
{
    const int flags = leaves(argv[0]);
    if (flags)
        return enif_schedule_nif(env, "exec_compare", flags, nif_exec_compare, argc, argv);
    struct call call = {.env = env};
    uint32_t index;
    uint64_t round;
    uint64_t size;
    if (!get_exec(&call, argv[0], 0, "exec") ||
        !get_uint32_t(&call, argv[1], 1, "index", &index) ||
        !get_uint64_t(&call, argv[2], 2, "round", &round) ||
        gsc_exec_compare(call.exec, index, round, &size, &call.err) != GSC_OK || !finish(&call))
        return failed(&call);
    const ERL_NIF_TERM terms[] = {make_uint64_t(env, size)};
    return done(&call, terms, 1);
}

static ErlNifFunc functions[] = {
    {"context_create_cpu", 1, nif_context_create_cpu, ERL_NIF_DIRTY_JOB_IO_BOUND},
    {"context_create_cuda", 1, nif_context_create_cuda, ERL_NIF_DIRTY_JOB_IO_BOUND},
    {"memory_create", 2, nif_memory_create, ERL_NIF_DIRTY_JOB_IO_BOUND},
    {"memory_destroy", 1, nif_memory_destroy, ERL_NIF_DIRTY_JOB_IO_BOUND},
    {"memory_write", 2, nif_memory_write, ERL_NIF_DIRTY_JOB_IO_BOUND},
    {"memory_read", 2, nif_memory_read, ERL_NIF_DIRTY_JOB_IO_BOUND},
    {"status_string", 1, nif_status_string, 0},
    {"version", 0, nif_version, 0},
    {"version_string", 0, nif_version_string, 0},
    {"has", 1, nif_has, 0},
    {"policy_preset", 1, nif_policy_preset, 0},
    {"policy_check", 1, nif_policy_check, 0},
    {"policy_resolve", 1, nif_policy_resolve, 0},
    {"preset_name", 1, nif_preset_name, 0},
    {"preset_summary", 1, nif_preset_summary, 0},
    {"info_get", 0, nif_info_get, 0},
    {"factor_init", 1, nif_factor_init, 0},
    {"factor_multiply", 3, nif_factor_multiply, 0},
    {"report_from_number", 1, nif_report_from_number, 0},
    {"report_from_flag", 1, nif_report_from_flag, 0},
    {"report_merge", 4, nif_report_merge, 0},
    {"factor_clip_grad_norm", 4, nif_factor_clip_grad_norm, 0},
    {"state_init", 2, nif_state_init, 0},
    {"state_init_from", 3, nif_state_init_from, 0},
    {"state_update", 4, nif_state_update, 0},
    {"state_combine_decisions", 3, nif_state_combine_decisions, 0},
    {"state_reason", 6, nif_state_reason, 0},
    {"factor_clip_outlier", 3, nif_factor_clip_outlier, 0},
    {"state_save", 2, nif_state_save, 0},
    {"state_load", 1, nif_state_load, 0},
    {"state_digest", 2, nif_state_digest, 0},
    {"report_set_rank", 5, nif_report_set_rank, 0},
    {"format_name", 1, nif_format_name, 0},
    {"format_summary", 1, nif_format_summary, 0},
    {"format_keys", 1, nif_format_keys, 0},
    {"state_import", 4, nif_state_import, 0},
    {"state_export", 4, nif_state_export, 0},
    {"policy_import", 4, nif_policy_import, 0},
    {"state_metrics", 3, nif_state_metrics, 0},
    {"state_diagnose", 6, nif_state_diagnose, 0},
    {"history_start", 8, nif_history_start, 0},
    {"history_line", 8, nif_history_line, 0},
    {"dtype_name", 1, nif_dtype_name, 0},
    {"dtype_bits", 1, nif_dtype_bits, 0},
    {"dtype_size", 1, nif_dtype_size, 0},
    {"measure", 4, nif_measure, 0},
    {"unscale", 5, nif_unscale, 0},
    {"scale", 5, nif_scale, 0},
    {"unscale_accumulate", 5, nif_unscale_accumulate, 0},
    {"cuda_start", 0, nif_cuda_start, ERL_NIF_DIRTY_JOB_IO_BOUND},
    {"cuda_log", 0, nif_cuda_log, 0},
    {"exec_wait", 1, nif_exec_wait, ERL_NIF_DIRTY_JOB_IO_BOUND},
    {"workspace_size", 3, nif_workspace_size, 0},
    {"comparison_name", 1, nif_comparison_name, 0},
    {"exec_compare", 3, nif_exec_compare, ERL_NIF_DIRTY_JOB_IO_BOUND},
};

ERL_NIF_INIT(Elixir.GradScaler.Native, functions, load, NULL, upgrade, unload)
