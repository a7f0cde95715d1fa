/* SPDX-License-Identifier: MIT */
/*
 * The replayer of the foreign client. A line on stdin, `preset key=value,... steps
 * [key=value,...]`, steps a policy of these settings, from the checkpoint where there is one; the
 * answer is `scale/events` of each step and the scale afterwards. `-`: no settings. A step is 0
 * (good), 1 (an overflow) or a good one with amax, such as a0x1p-3, or with a norm, such as
 * n0x1p-3, whose answer goes on with `/multiplier/mean/variance` of the guard.
 */
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "foreign.h"

int replay(void);

enum { MOST_ENTRIES = 64 };

/* One trace under way; the structs are as large as the table says. */
typedef struct trace {
    int32_t status;
    void *policy, *state, *report, *error;
} trace;

static void *new_object(const char *structure_name)
{
    return calloc(1, find_structure(structure_name)->size);
}

/* A list of gsc_entry, and what its members are called. */
typedef struct list {
    char *entries;
    uint64_t n;
} list;

static list new_list(void)
{
    return (list){calloc(MOST_ENTRIES, find_structure("gsc_entry")->size), 0};
}

/* What a word stands for: a number, `null`, or a text. */
static void add_entry(list *l, const char *key, const char *word)
{
    enum { NUMBER = 1, TEXT, EMPTY };
    char *entry = l->entries + l->n++ * find_structure("gsc_entry")->size, *end;
    double number = strtod(word, &end);
    const bool is_number = *word && !*end, is_empty = strcmp(word, "null") == 0;
    const uint32_t kind = is_number ? NUMBER : is_empty ? EMPTY : TEXT;
    number = is_number ? number : 0;
    memcpy(field_of(entry, "gsc_entry", "value"), &number, sizeof number);
    memcpy(field_of(entry, "gsc_entry", "kind"), &kind, sizeof kind);
    snprintf(field_of(entry, "gsc_entry", "key"), find_field("gsc_entry", "key")->count, "%s", key);
    if (kind == TEXT)
        snprintf(field_of(entry, "gsc_entry", "text"), find_field("gsc_entry", "text")->count, "%s",
                 word);
}

/* key=value,key=value or `-`; cuts the text into pieces. */
static list read_list(char *text)
{
    list l = new_list();
    char *rest = NULL;
    for (char *item = strcmp(text, "-") ? strtok_r(text, ",", &rest) : NULL;
         item && l.n < MOST_ENTRIES; item = strtok_r(NULL, ",", &rest)) {
        char *equals = strchr(item, '=');
        if (equals)
            *equals = 0;
        add_entry(&l, item, equals ? equals + 1 : "");
    }
    return l;
}

static void start(trace *t, const char *preset, char *settings, char *checkpoint)
{
    const value error = {.pointer = t->error}, policy = {.pointer = t->policy};
    const value format = {.constant = preset}, state = {.pointer = t->state};
    memcpy(t->policy, &find_structure("gsc_policy")->size, sizeof(uint32_t));
    list l = read_list(settings);
    t->status = foreign_do(
        "gsc_policy_import",
        (value[]){
            format, {0}, {.pointer = l.entries}, {.u64 = l.n}, {0}, policy, {0}, {0}, {0}, error});
    free(l.entries);
    if (t->status == 0 && !checkpoint)
        t->status = foreign_do("gsc_state_init", (value[]){{0}, policy, state, error});
    if (t->status == 0 && checkpoint) {
        l = read_list(checkpoint);
        t->status = foreign_do("gsc_state_import", (value[]){format,
                                                             {.constant = ""},
                                                             {.pointer = l.entries},
                                                             {.u64 = l.n},
                                                             policy,
                                                             policy,
                                                             state,
                                                             {0},
                                                             {0},
                                                             {0},
                                                             error});
        free(l.entries);
    }
}

static void step(trace *t, const char *what)
{
    const bool overflow = strcmp(what, "1") == 0;
    const double amax = *what == 'a' ? strtod(what + 1, NULL) : 0;
    const double norm = *what == 'n' ? strtod(what + 1, NULL) : 0;
    memset(t->report, 0, find_structure("gsc_report")->size);
    memcpy(field_of(t->report, "gsc_report", "kind"), &(uint32_t){1}, 4);
    memcpy(field_of(t->report, "gsc_report", "measured"), &(uint32_t){7}, 4);
    memcpy(field_of(t->report, "gsc_report", "found_inf"), &(float){(float)overflow}, 4);
    memcpy(field_of(t->report, "gsc_report", "overflow"), &(int32_t){overflow}, 4);
    memcpy(field_of(t->report, "gsc_report", "amax"), &amax, 8);
    memcpy(field_of(t->report, "gsc_report", "sum_squares"), &(double){norm * norm}, 8);
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

static void answer_update(trace *t, const char *what, FILE *out)
{
    static const char *const guard[] = {"guard_multiplier", "guard_mean", "guard_variance"};
    uint32_t events;
    memcpy(&events, field_of(t->state, "gsc_state", "events"), 4);
    fprintf(out, "/%u", events);
    for (int i = 0; *what == 'n' && i < 3; i++) {
        double number;
        memcpy(&number, field_of(t->state, "gsc_state", guard[i]), 8);
        fprintf(out, "/%a", number);
    }
    fputc(' ', out);
}

/* The answer goes to `out`; on an error what it holds is to be thrown away. */
static void run_trace(trace *t, char *line, FILE *out)
{
    char *rest = NULL, *preset = strtok_r(line, " \n", &rest);
    char *settings = strtok_r(NULL, " \n", &rest), *steps = strtok_r(NULL, " \n", &rest);
    start(t, preset ? preset : "", settings ? settings : "-", strtok_r(NULL, " \n", &rest));
    for (char *item = steps ? strtok_r(steps, ",", &rest) : NULL; item && t->status == 0;
         item = strtok_r(NULL, ",", &rest)) {
        fprintf(out, "%a", scale_of(t));
        step(t, item);
        answer_update(t, item, out);
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
