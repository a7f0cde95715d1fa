/* SPDX-License-Identifier: MIT */
/* The C client of replay.py, which says what is read and written: one line per recording. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <gradscaler.h>

/* The fields of all structs in a row; those of gsc_policy follow the entry with its name. */
static const struct field {
    const char *name, *kind;
    size_t offset;
} fields[] = {
#define STRUCT(name, size)               {#name, "", 0},
#define FIELD(name, kind, count, offset) {#name, #kind, offset},
#define NESTED                           FIELD
#define END_STRUCT()
#define FUNCTION(name, result)
#define ARGUMENT(kind, type, name, null, count)
#define END()
#include "../abi/signatures.inc"
};

static int set_field(gsc_policy *policy, const char *name, const char *value)
{
    const struct field *field = fields;
    while (strcmp(field->name, "gsc_policy") != 0)
        field++;
    for (field++; *field->kind; field++) {
        if (strcmp(field->name, name) != 0)
            continue;
        double number = strtod(value, NULL);
        uint32_t u32 = (uint32_t)number;
        uint64_t u64 = (uint64_t)number;
        char *at = (char *)policy + field->offset;
        if (strcmp(field->kind, "DOUBLE") == 0)
            memcpy(at, &number, sizeof number);
        else if (strcmp(field->kind, "U64") == 0)
            memcpy(at, &u64, sizeof u64);
        else
            memcpy(at, &u32, sizeof u32);
        return 1;
    }
    printf("error no field %s\n", name);
    return 0;
}

static int set_fields(gsc_policy *policy, char *settings)
{
    if (strcmp(settings, "-") == 0)
        return 1;
    for (char *rest, *item = strtok_r(settings, ",", &rest); item;
         item = strtok_r(NULL, ",", &rest)) {
        char *value = strchr(item, '=');
        if (!value)
            return 0;
        *value++ = '\0';
        if (!set_field(policy, item, value))
            return 0;
    }
    return 1;
}

static gsc_status replay(const gsc_policy *policy, char *steps, gsc_error *err)
{
    gsc_state state;
    gsc_status status = gsc_state_init(NULL, policy, &state, err);
    char *rest, *step = strtok_r(steps, ",", &rest);
    for (; status == GSC_OK && step; step = strtok_r(NULL, ",", &rest)) {
        gsc_report report = {0};
        report.overflow = *step == '1';
        report.found_inf = (float)report.overflow;
        report.amax = *step == 'a' ? strtod(step + 1, NULL) : 0;
        printf("%a/", state.factor.scale);
        status = gsc_update(NULL, policy, &state, &report, &state, err);
        printf("%" PRIu32 " ", state.events);
    }
    if (status == GSC_OK)
        printf("%a\n", state.factor.scale);
    return status;
}

int main(void)
{
    static char line[1 << 16], preset[64], settings[4096], steps[1 << 16];
    while (fgets(line, sizeof line, stdin)) {
        gsc_policy policy = GSC_POLICY_INIT;
        gsc_error err = {0};
        if (sscanf(line, "%63s %4095s %65535s", preset, settings, steps) != 3) {
            puts("error three words expected");
        } else if (gsc_policy_preset(preset, &policy, &err) != GSC_OK) {
            printf("error %d %s\n", err.status, err.message);
        } else if (set_fields(&policy, settings) && replay(&policy, steps, &err) != GSC_OK) {
            printf("error %d %s\n", err.status, err.message);
        }
    }
    return 0;
}
