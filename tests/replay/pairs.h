/* SPDX-License-Identifier: MIT */
/* Policies, checkpoints (key=value,key=value,... or "-") and steps as text, for clients that read
 * lines. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <gradscaler.h>

#define PAIRS 64

/* Reads the value of a word: a number, `null`, or a text. */
static void read_value(const char *text, gsc_entry *entry)
{
    char *end;
    entry->value = strtod(text, &end);
    entry->kind = GSC_ENTRY_NUMBER;
    if (*text && !*end)
        return;
    entry->value = 0;
    entry->kind = strcmp(text, "null") == 0 ? GSC_ENTRY_NULL : GSC_ENTRY_TEXT;
    if (entry->kind == GSC_ENTRY_TEXT)
        snprintf(entry->text, sizeof entry->text, "%s", text);
}

/* `words`, which are cut into pieces, as entries; their number. */
static uint64_t read_pairs(char *words, gsc_entry entries[PAIRS])
{
    uint64_t n = 0;
    memset(entries, 0, PAIRS * sizeof *entries);
    if (strcmp(words, "-") == 0)
        return 0;
    for (char *rest, *item = strtok_r(words, ",", &rest); item && n < PAIRS;
         item = strtok_r(NULL, ",", &rest)) {
        char *value = strchr(item, '=');
        if (value)
            *value++ = '\0';
        snprintf(entries[n].key, sizeof entries[n].key, "%s", item);
        read_value(value ? value : "", &entries[n++]);
    }
    return n;
}

/* The policy of a preset with settings of its framework. */
static gsc_status read_policy(const char *preset, char *settings, gsc_policy *policy,
                              gsc_error *err)
{
    gsc_entry entries[PAIRS];
    const uint64_t n = read_pairs(settings, entries);
    return gsc_policy_import(preset, NULL, entries, n, NULL, policy, NULL, 0, NULL, err);
}

/* Reads the state before the first step: a new one, or, unless it is empty, a checkpoint's, which
 * can change the policy. */
static inline gsc_status read_state(const char *preset, char *checkpoint, gsc_policy *policy,
                                    gsc_state *state, gsc_error *err)
{
    gsc_entry entries[PAIRS];
    if (!*checkpoint)
        return gsc_state_init(NULL, policy, state, err);
    const uint64_t n = read_pairs(checkpoint, entries);
    return gsc_state_import(preset, "", entries, n, policy, policy, state, NULL, 0, NULL, err);
}

/* Returns the report of a step: "0" is good, "1" an overflow, "n8" good with this norm. */
static inline gsc_report read_step(const char *step)
{
    gsc_report report = {.kind = GSC_REPORT_TENSORS, .measured = 7};
    const double norm = *step == 'n' ? strtod(step + 1, NULL) : 0;
    report.overflow = *step == '1';
    report.found_inf = (float)report.overflow;
    report.sum_squares = norm * norm;
    return report;
}

/* Prints the answer to a step: the events of its update and, for a norm, what the guard did. */
static inline void print_update(const char *step, const gsc_state *state)
{
    printf("/%u", state->events);
    if (*step == 'n')
        printf("/%.17g/%.17g/%.17g", state->guard_multiplier, state->guard_mean,
               state->guard_variance);
    putchar(' ');
}

/* Answers each line of stdin, as replay.py says, with what `replay` prints and the scale
 * afterwards; `replay` goes on from the state. */
static inline void answer_lines(gsc_status (*replay)(const gsc_policy *, gsc_state *, char *steps,
                                                     gsc_error *))
{
    static char line[1 << 16], preset[64], settings[4096], steps[1 << 16], checkpoint[4096];
    while (fgets(line, sizeof line, stdin)) {
        gsc_policy policy = GSC_POLICY_INIT;
        gsc_state state;
        gsc_error err = {0};
        *checkpoint = '\0';
        if (sscanf(line, "%63s %4095s %65535s %4095s", preset, settings, steps, checkpoint) < 3)
            puts("error three words expected");
        else if (read_policy(preset, settings, &policy, &err) != GSC_OK ||
                 read_state(preset, checkpoint, &policy, &state, &err) != GSC_OK ||
                 replay(&policy, &state, steps, &err) != GSC_OK)
            printf("error %d %s\n", err.status, err.message);
        else
            printf("%.17g\n", state.factor.scale);
    }
}
