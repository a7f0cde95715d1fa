/* SPDX-License-Identifier: MIT */
/*
 * The replayer of the foreign client. A line on stdin, `preset field=value,... steps`, steps a
 * policy; the answer is `scale/events` of each step and the scale afterwards. `-`: no fields. A
 * step is 0 (good), 1 (an overflow) or a good one with amax, such as a0x1p-3.
 */
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "foreign.h"

int replay(void);

/* One trace under way; the structs are as large as the table says. */
typedef struct trace {
    int32_t status;
    void *policy, *state, *report, *error;
} trace;

static void *new_object(const char *structure_name)
{
    return calloc(1, find_structure(structure_name)->size);
}

static void fail(trace *t, int32_t status, const char *message, const char *detail)
{
    char *text = field_of(t->error, "gsc_error", "message");
    t->status = status;
    snprintf(text, find_field("gsc_error", "message")->count, "%s%s", message, detail);
}

static void set_field(trace *t, const char *name, const char *text)
{
    enum { ERROR_POLICY = -4 };
    const field *f = find_field("gsc_policy", name);
    char *at = (char *)t->policy + (f ? f->offset : 0), *end;
    if (!f) {
        fail(t, ERROR_POLICY, "gsc_policy has no field ", name);
        return;
    }
    if (f->kind == DOUBLE) {
        const double number = strtod(text, &end);
        memcpy(at, &number, sizeof number);
    } else { /* little-endian: a uint32_t is the lower half */
        const uint64_t number = strtoull(text, &end, 10);
        memcpy(at, &number, primitive(f->kind)->size);
    }
    if (end == text || *end)
        fail(t, ERROR_POLICY, "not a number: ", text);
}

/* name=value,name=value; changes the text. */
static void set_fields(trace *t, char *text)
{
    char *rest = NULL;
    for (char *item = strtok_r(text, ",", &rest); item; item = strtok_r(NULL, ",", &rest)) {
        char *equals = strchr(item, '=');
        if (equals)
            *equals = 0;
        if (t->status == 0)
            set_field(t, item, equals ? equals + 1 : "");
    }
}

static void start(trace *t, const char *preset, char *fields)
{
    const value error = {.pointer = t->error}, policy = {.pointer = t->policy};
    memcpy(t->policy, &find_structure("gsc_policy")->size, sizeof(uint32_t));
    t->status = foreign_do("gsc_policy_preset", (value[]){{.constant = preset}, policy, error});
    if (t->status == 0 && strcmp(fields, "-") != 0)
        set_fields(t, fields);
    if (t->status == 0)
        t->status =
            foreign_do("gsc_state_init", (value[]){{0}, policy, {0}, {.pointer = t->state}, error});
}

static void step(trace *t, const char *what)
{
    const bool overflow = strcmp(what, "1") == 0;
    const double amax = overflow ? 0.0 : strtod(what + (*what == 'a'), NULL);
    memset(t->report, 0, find_structure("gsc_report")->size);
    memcpy(field_of(t->report, "gsc_report", "found_inf"), &(float){(float)overflow}, 4);
    memcpy(field_of(t->report, "gsc_report", "overflow"), &(int32_t){overflow}, 4);
    memcpy(field_of(t->report, "gsc_report", "amax"), &amax, 8);
    t->status = foreign_do("gsc_state_update", (value[]){{0},
                                                         {.pointer = t->policy},
                                                         {.pointer = t->state},
                                                         {.pointer = t->report},
                                                         {.pointer = t->state},
                                                         {.pointer = t->error}});
}

static double scale_of(trace *t)
{
    double scale;
    memcpy(&scale, field_of(field_of(t->state, "gsc_state", "factor"), "gsc_factor", "scale"), 8);
    return scale;
}

static uint32_t events_of(trace *t)
{
    uint32_t events;
    memcpy(&events, field_of(t->state, "gsc_state", "events"), 4);
    return events;
}

/* The answer goes to `out`; on an error what it holds is to be thrown away. */
static void run_trace(trace *t, char *line, FILE *out)
{
    char *rest = NULL, *preset = strtok_r(line, " \n", &rest);
    char *fields = strtok_r(NULL, " \n", &rest), *steps = strtok_r(NULL, " \n", &rest);
    start(t, preset ? preset : "", fields ? fields : "-");
    for (char *item = steps ? strtok_r(steps, ",", &rest) : NULL; item && t->status == 0;
         item = strtok_r(NULL, ",", &rest)) {
        fprintf(out, "%a/", scale_of(t));
        step(t, item);
        fprintf(out, "%u ", events_of(t));
    }
    if (t->status == 0)
        fprintf(out, "%a", scale_of(t));
}

static void answer(char *line)
{
    char *text = NULL;
    size_t length = 0;
    FILE *out = open_memstream(&text, &length);
    trace t = {0, new_object("gsc_policy"), new_object("gsc_state"), new_object("gsc_report"),
               new_object("gsc_error")};
    run_trace(&t, line, out);
    fclose(out);
    if (t.status == 0)
        puts(text);
    else
        printf("error %d %s\n", t.status, (char *)field_of(t.error, "gsc_error", "message"));
    fflush(stdout);
    free(text);
    free(t.policy);
    free(t.state);
    free(t.report);
    free(t.error);
}

int replay(void)
{
    char *line = NULL;
    size_t capacity = 0;
    while (getline(&line, &capacity, stdin) > 0)
        answer(line);
    free(line);
    return 0;
}
