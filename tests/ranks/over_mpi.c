/* SPDX-License-Identifier: MIT */
/*
 * The rank program of steps.py, in C over MPI.
 *
 *     mpirun -np 4 over_mpi DIRECTORY FAULT SECONDS
 */
#define _POSIX_C_SOURCE 200809L
#include <math.h>
#include <mpi.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <gradscaler.h>

enum { STEPS = 6, BAD_STEP = 3, BAD_RANK = 1, MOST = 64, WEIGHT = 8, BIAS = 4 };
static const char *const NAMES[] = {"weight", "bias"};

static int rank, size;

static void must(gsc_status status)
{
    if (status != GSC_OK) {
        fprintf(stderr, "rank %d: %s\n", rank, gsc_status_string(status));
        MPI_Abort(MPI_COMM_WORLD, 2);
    }
}

/* Makes a step and writes its line to `log`. Returns whether all go on. */
static int step(int number, const char *fault, unsigned seconds, const gsc_policy *policy,
                gsc_state *state, FILE *log)
{
    float weight[WEIGHT], bias[BIAS];
    gsc_tensor list[] = {{.data = weight, .count = WEIGHT, .dtype = GSC_F32},
                         {.data = bias, .count = BIAS, .dtype = GSC_F32}};
    gsc_tensor_options options = GSC_TENSOR_OPTIONS_INIT;
    gsc_report report, all[MOST];
    gsc_error err;
    for (int t = 0; t < 2; t++)
        for (uint64_t i = 0; i < list[t].count; i++)
            ((float *)list[t].data)[i] =
                (float)(1 + (number + rank + (int)i) % 7) * state->factor.scale_f32;
    const int bad = rank == BAD_RANK && number == BAD_STEP;
    if (bad)
        sleep(seconds);
    if (bad && strcmp(fault, "nan") == 0)
        weight[2] = NAN;
    if (bad && strcmp(fault, "fails") == 0)
        list[0].dtype = 99;
    options.policy = policy;
    options.want = GSC_WANT_NORM;
    gsc_status status = gsc_unscale(NULL, &state->factor, list, list, 2, &options, &report, &err);
    if (status != GSC_OK) {
        memset(&report, 0, sizeof report);
        report.status = status;
        report.overflow = 1;
    }
    must(gsc_report_set_rank(NULL, &report, policy, state, (uint32_t)rank, &report, NULL));
    if (bad && strcmp(fault, "dies") == 0)
        raise(SIGKILL);
    MPI_Allgather(&report, sizeof report, MPI_BYTE, all, sizeof report, MPI_BYTE, MPI_COMM_WORLD);
    status = gsc_report_merge(NULL, all, (uint64_t)size, GSC_MERGE_SHARDS, policy, &report, &err);
    if (status == GSC_OK)
        status = gsc_state_update(NULL, policy, state, &report, state, &err);
    if (status != GSC_OK)
        fprintf(log, "%d refused %s", number, err.message);
    else
        fprintf(log, "%d %s %.17g %.17g", number, report.overflow ? "skipped" : "stepped",
                sqrt(report.sum_squares), state->factor.scale);
    if (status == GSC_OK && report.overflow)
        fprintf(log, " rank %u: %s", report.first_rank_plus_1 - 1, NAMES[report.first_tensor]);
    fputs("\n", log);
    return status == GSC_OK;
}

static int faults(const char *directory, const char *fault, unsigned seconds)
{
    gsc_policy policy = GSC_POLICY_INIT;
    gsc_state state;
    char path[4096];
    int goes_on = 1;
    must(gsc_policy_preset("torch", &policy, NULL));
    policy.init_scale = strcmp(fault, "drift") == 0 && rank == BAD_RANK ? 2 : 4;
    policy.growth_interval = 2;
    must(gsc_state_init(NULL, &policy, &state, NULL));
    snprintf(path, sizeof path, "%s/%d", directory, rank);
    FILE *log = fopen(path, "w");
    if (!log)
        MPI_Abort(MPI_COMM_WORLD, 2);
    setvbuf(log, NULL, _IOLBF, 0);
    for (int i = 0; i < STEPS && goes_on; i++)
        goes_on = step(i, fault, seconds, &policy, &state, log);
    fclose(log);
    return goes_on;
}

int main(int argc, char **argv)
{
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    const int good = argc == 4 && size <= MOST && faults(argv[1], argv[2], (unsigned)atoi(argv[3]));
    MPI_Finalize(); /* a rank that leaves without is the end of all, with lines not written */
    return !good;
}
