/* SPDX-License-Identifier: MIT */
/*
 * Training on several ranks over MPI: all of them step, or none, with the same bits.
 *
 *     mpicc -I include mpi_digits.c libgradscaler.a -lm -pthread
 *     mpirun -np 4 mpi_digits FILE copies    data parallel: each rank has all weights
 *     mpirun -np 4 mpi_digits FILE shards    and with a shard of the optimizer and its gradients
 *
 * FILE and network are as in digits.c. A batch, and the list of all parameters, have four parts,
 * which 1, 2 or 4 ranks share. MPI_Allreduce chooses the order of a sum; here the order of the
 * parts is fixed, so any number of ranks prints the same digest of the weights.
 *
 * `agree` has all that a scaler needs from ranks: each sets its rank in its reports, one
 * collective gathers them, and all merge them in order.
 */
#include <mpi.h>

#include "network.h"

enum { PARTS = 4, ROWS = BATCH / PARTS, ALL = TENSORS * LARGEST, SHARD = ALL / PARTS };
static const double MAX_NORM = 2e-5; /* of all gradients; a step in six is clipped to it */
static const char *const NAMES[TENSORS] = {"layer1.weight", "layer1.bias",   "layer2.weight",
                                           "layer2.bias",   "layer3.weight", "layer3.bias"};

typedef struct ranks {
    int size, rank, own; /* parts `own * rank` up to `own * (rank + 1)` are this rank's */
    gsc_report reports[PARTS], all[PARTS];
    MPI_Request request;
} ranks;

/* Starts to gather the reports of the parts, whatever became of the calls that made them. */
static void gather(ranks *r, const gsc_policy *policy, const gsc_state *state)
{
    for (int i = 0; i < r->own; i++)
        must(gsc_report_set_rank(NULL, &r->reports[i], policy, state, (uint32_t)r->rank,
                                 &r->reports[i], NULL));
    const int bytes = r->own * (int)sizeof *r->reports;
    MPI_Iallgather(r->reports, bytes, MPI_BYTE, r->all, bytes, MPI_BYTE, MPI_COMM_WORLD,
                   &r->request);
}

/* Merges the reports and updates, alike on all ranks. Ranks that differ end the program, by name.
 */
static gsc_report agree(ranks *r, const gsc_policy *policy, gsc_state *state, uint32_t kind)
{
    gsc_report report;
    gsc_error err;
    MPI_Wait(&r->request, MPI_STATUS_IGNORE);
    if (gsc_report_merge(NULL, r->all, PARTS, kind, policy, &report, &err) != GSC_OK ||
        gsc_state_update(NULL, policy, state, &report, state, &err) != GSC_OK) {
        fprintf(stderr, "rank %d stops: %s\n", r->rank, err.message);
        exit(1);
    }
    return report;
}

/* The part `first` to `first + count` of all parameters, as the pieces of tensors in it. */
static uint64_t pieces(void *all, uint32_t dtype, size_t first, size_t count, gsc_tensor *list)
{
    uint64_t n = 0;
    for (size_t t = first / LARGEST; t < TENSORS && t * LARGEST < first + count; t++, n++) {
        const size_t from = first > t * LARGEST ? first - t * LARGEST : 0;
        const size_t end = first + count - t * LARGEST;
        const size_t to = end < tensor_size(t) ? end : tensor_size(t);
        char *data = (char *)all + (t * LARGEST + from) * gsc_dtype_size(dtype);
        list[n] = (gsc_tensor){.data = data, .count = to > from ? to - from : 0, .dtype = dtype};
    }
    return n;
}

/* A rank goes on after a failed call, with a report that says so: the others would wait for it. */
static void unscale(const gsc_policy *policy, const gsc_factor *factor, const gsc_tensor *in,
                    const gsc_tensor *out, uint64_t n, uint32_t want, gsc_report *report)
{
    gsc_tensor_options options = GSC_TENSOR_OPTIONS_INIT;
    gsc_error err;
    options.policy = policy;
    options.want = want;
    const gsc_status status = gsc_unscale(NULL, factor, in, out, n, &options, report, &err);
    if (status == GSC_OK)
        return;
    fprintf(stderr, "%s\n", err.message);
    memset(report, 0, sizeof *report);
    report->status = status;
    report->overflow = 1;
}

/* Forward and backward of a part of the batch: its float16 gradients, times the scale. */
static void part_gradients(network *net, const gsc_state *state, const digit *batch, int part)
{
    gsc_tensor wide[TENSORS], stored[TENSORS];
    forward(net, batch + part * ROWS, ROWS);
    loss_gradient(net, batch + part * ROWS, ROWS);
    round_to(net->dtype, &state->factor, net->delta, net->delta, ROWS * CLASSES);
    backward(net, ROWS);
    const uint64_t n = pieces(net->gradients, GSC_F32, 0, ALL, wide);
    pieces(net->half, GSC_F16, 0, ALL, stored);
    must(gsc_scale(NULL, NULL, wide, stored, n, NULL, NULL, NULL));
}

/* Data parallel: while the reports are on their way, so are the gradients. */
static gsc_report step_copies(network *net, ranks *r, const gsc_policy *policy, gsc_state *state,
                              const digit *batch)
{
    static float own[PARTS][ALL], all[PARTS][ALL];
    for (int i = 0; i < r->own; i++) {
        gsc_tensor stored[TENSORS], wide[TENSORS];
        part_gradients(net, state, batch, r->rank * r->own + i);
        const uint64_t n = pieces(net->half, GSC_F16, 0, ALL, stored);
        pieces(own[i], GSC_F32, 0, ALL, wide);
        unscale(policy, &state->factor, stored, wide, n, 0, &r->reports[i]);
    }
    gather(r, policy, state);
    MPI_Allgather(own, r->own * ALL, MPI_FLOAT, all, r->own * ALL, MPI_FLOAT, MPI_COMM_WORLD);
    float *sum = net->gradients[0];
    memset(sum, 0, sizeof net->gradients);
    for (int part = 0; part < PARTS; part++)
        for (int i = 0; i < ALL; i++)
            sum[i] += all[part][i];
    const gsc_report report = agree(r, policy, state, GSC_MERGE_ADDENDS);
    if (!state->skip)
        adam(net, 0, ALL);
    return report;
}

/* Sharded: a rank adds, unscales and clips its shards alone, by the norm of all. */
static gsc_report step_shards(network *net, ranks *r, const gsc_policy *policy, gsc_state *state,
                              const digit *batch)
{
    static uint16_t mine[PARTS][PARTS][SHARD], sent[PARTS * PARTS * SHARD]; /* [shard][part] */
    static float wide[SHARD];
    gsc_tensor list[TENSORS];
    gsc_factor clip;
    for (int i = 0; i < r->own; i++) {
        part_gradients(net, state, batch, r->rank * r->own + i);
        for (int shard = 0; shard < PARTS; shard++)
            memcpy(&sent[(shard * r->own + i) * SHARD], &net->half[0][0] + shard * SHARD,
                   sizeof net->half / PARTS);
    }
    const int count = r->own * r->own * SHARD;
    MPI_Alltoall(sent, count, MPI_UINT16_T, mine, count, MPI_UINT16_T, MPI_COMM_WORLD);
    memset(net->gradients, 0, sizeof net->gradients);
    for (int i = 0; i < r->own; i++) {
        const size_t first = (size_t)(r->rank * r->own + i) * SHARD;
        float *sum = (float *)net->gradients + first;
        for (int part = 0; part < PARTS;
             part++) { /* of a rank all its shards, of a shard its parts */
            const int from = part / r->own, k = part % r->own;
            uint16_t *half = &mine[0][0][0] + ((from * r->own + i) * r->own + k) * SHARD;
            const gsc_tensor in = {.data = half, .count = SHARD, .dtype = GSC_F16},
                             out = {.data = wide, .count = SHARD, .dtype = GSC_F32};
            must(gsc_scale(NULL, NULL, &in, &out, 1, NULL, NULL, NULL));
            for (size_t j = 0; j < SHARD; j++)
                sum[j] += wide[j];
        }
        const uint64_t n = pieces(net->gradients, GSC_F32, first, SHARD, list);
        unscale(policy, &state->factor, list, list, n, GSC_WANT_NORM, &r->reports[i]);
    }
    gather(r, policy, state);
    const gsc_report report = agree(r, policy, state, GSC_MERGE_SHARDS);
    if (state->skip)
        return report;
    must(gsc_factor_clip_grad_norm(NULL, NULL, &report, MAX_NORM, &clip, NULL));
    const size_t own = (size_t)r->own * SHARD, first = (size_t)r->rank * own;
    const uint64_t n = pieces(net->gradients, GSC_F32, first, own, list);
    must(gsc_unscale(NULL, &clip, list, list, n, NULL, NULL, NULL));
    adam(net, first, first + own);
    MPI_Allgather(MPI_IN_PLACE, 0, MPI_FLOAT, net->master, (int)own, MPI_FLOAT, MPI_COMM_WORLD);
    return report;
}

/* Prints the last parameter with an overflow, which is nearest to the cause: the backward pass goes
 * from the last to the first. A report has its position in the rank's own list. */
static void tell(const ranks *r, int step, int sharded)
{
    size_t part = PARTS - 1;
    while (part > 0 && r->all[part].nan_count + r->all[part].inf_count == 0)
        part--;
    const gsc_report *report = &r->all[part];
    if (report->nan_count + report->inf_count == 0) { /* a call failed; gsc_state_update says so */
        fprintf(stderr, "step %d is skipped\n", step);
        return;
    }
    const size_t first = sharded ? part * SHARD / LARGEST : 0;
    fprintf(stderr, "step %d is skipped: rank %u, %s\n", step, report->last_rank_plus_1 - 1,
            NAMES[first + (size_t)report->last_tensor]);
}

/* FNV-1a. */
static uint64_t digest(const void *data, size_t size)
{
    uint64_t hash = 0xcbf29ce484222325u;
    for (size_t i = 0; i < size; i++)
        hash = (hash ^ ((const unsigned char *)data)[i]) * 0x100000001b3u;
    return hash;
}

int main(int argc, char **argv)
{
    static network net;
    digit batch[BATCH];
    ranks r = {0};
    gsc_policy policy = GSC_POLICY_INIT;
    gsc_state state;
    MPI_Init(&argc, &argv);
    MPI_Comm_size(MPI_COMM_WORLD, &r.size);
    MPI_Comm_rank(MPI_COMM_WORLD, &r.rank);
    const int sharded = argc == 3 && strcmp(argv[2], "shards") == 0;
    if (argc != 3 || (!sharded && strcmp(argv[2], "copies") != 0) || PARTS % r.size != 0) {
        fprintf(stderr, "usage: mpirun -np 1, 2 or 4 mpi_digits FILE copies|shards\n");
        MPI_Abort(MPI_COMM_WORLD, 1);
    }
    const digit *digits = read_digits(argv[1]);
    r.own = PARTS / r.size;
    start(&net, GSC_F16);
    must(gsc_policy_preset("recommended", &policy, NULL));
    policy.init_scale = 0x1p40; /* too high on purpose, and a short interval: the scale moves */
    policy.max_scale = 0;
    policy.growth_interval = 25;
    must(gsc_state_init(NULL, &policy, &state, NULL));
    for (int i = 0; i < STEPS; i++) {
        next_batch(&net, digits, batch);
        const gsc_report report = sharded ? step_shards(&net, &r, &policy, &state, batch)
                                          : step_copies(&net, &r, &policy, &state, batch);
        if (report.overflow && r.rank == 0)
            tell(&r, i, sharded);
    }

    const uint64_t of_weights = digest(net.master, sizeof net.master);
    uint64_t of_rank_0 = of_weights;
    MPI_Bcast(&of_rank_0, 1, MPI_UINT64_T, 0, MPI_COMM_WORLD);
    if (of_weights != of_rank_0) {
        fprintf(stderr, "rank %d has other weights than rank 0\n", r.rank);
        exit(1);
    }
    const double percent = accuracy(&net, digits + TRAINING_SET);
    if (r.rank == 0)
        printf("%s: accuracy %.1f%%, skipped %lld, growths %lld, scale %.0f, digest %016llx\n",
               argv[2], percent, (long long)state.total_overflows, (long long)state.total_growths,
               state.factor.scale, (unsigned long long)of_weights);
    MPI_Finalize();
    return percent < 90;
}
