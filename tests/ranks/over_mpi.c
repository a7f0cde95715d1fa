/* SPDX-License-Identifier: MIT */
/*
 * The rank program of steps.py, in C over MPI.
 *
 *     mpirun -np 4 over_mpi faults DIRECTORY FAULT SECONDS
 *     mpirun -np N over_mpi reports FILE DIRECTORY    merges each row of N reports in FILE
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

static FILE *opened(const char *directory, const char *name, const char *mode)
{
    char path[4096];
    snprintf(path, sizeof path, "%s/%s", directory, name);
    FILE *file = fopen(path, mode);
    if (!file)
        MPI_Abort(MPI_COMM_WORLD, 2);
    return file;
}

static gsc_status merge(gsc_report *report, const gsc_policy *policy, gsc_error *err)
{
    gsc_report all[MOST];
    MPI_Allgather(report, sizeof *report, MPI_BYTE, all, sizeof *report, MPI_BYTE, MPI_COMM_WORLD);
    return gsc_report_merge(NULL, all, (uint64_t)size, GSC_MERGE_SHARDS, policy, report, err);
}

/* One step, of which `log` gets a line; whether all go on. */
static int step(int number, const char *fault, unsigned seconds, const gsc_policy *policy,
                gsc_state *state, FILE *log)
{
    float weight[WEIGHT], bias[BIAS];
    gsc_tensor list[] = {{.data = weight, .count = WEIGHT, .dtype = GSC_F32},
                         {.data = bias, .count = BIAS, .dtype = GSC_F32}};
    gsc_tensor_options options = GSC_TENSOR_OPTIONS_INIT;
    gsc_report report;
    gsc_error err;
    for (int t = 0; t < 2; t++)
        for (uint64_t i = 0; i < list[t].count; i++)
            ((float *)list[t].data)[i] =
                (float)(1 + (number + rank + (int)i) % 7) * state->factor.scale_f32;
    const int bad = rank == BAD_RANK && number == BAD_STEP;
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
    if (bad && strcmp(fault, "late") == 0)
        sleep(seconds);
    status = merge(&report, policy, &err);
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
    char name[16];
    int goes_on = 1;
    must(gsc_policy_preset("torch", &policy, NULL));
    policy.init_scale = strcmp(fault, "drift") == 0 && rank == BAD_RANK ? 2 : 4;
    policy.growth_interval = 2;
    must(gsc_state_init(NULL, &policy, &state, NULL));
    snprintf(name, sizeof name, "%d", rank);
    FILE *log = opened(directory, name, "w");
    setvbuf(log, NULL, _IOLBF, 0);
    for (int i = 0; i < STEPS && goes_on; i++)
        goes_on = step(i, fault, seconds, &policy, &state, log);
    fclose(log);
    return goes_on;
}

static int reports(const char *path, const char *directory)
{
    gsc_report row[MOST];
    char name[32];
    FILE *in = fopen(path, "rb");
    snprintf(name, sizeof name, "%d-%d", size, rank);
    FILE *out = opened(directory, name, "wb");
    while (fread(row, sizeof *row, (size_t)size, in) == (size_t)size) {
        must(merge(&row[rank], NULL, NULL));
        fwrite(&row[rank], sizeof *row, 1, out);
    }
    fclose(in);
    return fclose(out) == 0;
}

int main(int argc, char **argv)
{
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    int good = 0;
    if (argc == 5 && strcmp(argv[1], "faults") == 0)
        good = faults(argv[2], argv[3], (unsigned)atoi(argv[4]));
    else if (argc == 4 && strcmp(argv[1], "reports") == 0 && size <= MOST)
        good = reports(argv[2], argv[3]);
    MPI_Finalize(); /* a rank that leaves without is the end of all, with lines not written */
    return !good;
}
