/* SPDX-License-Identifier: MIT */
/* Fields of a gsc_policy by name, for clients that read settings as text. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <gradscaler.h>

/* The fields of all structs in a row; those of gsc_policy follow the entry with its name. */
static const struct field {
    const char *name, *kind;
    size_t offset;
} fields[] = {
#define STRUCT(name, size, grows)        {#name, "", 0},
#define FIELD(name, kind, count, offset) {#name, #kind, offset},
#define NESTED                           FIELD
#define END_STRUCT()
#define FUNCTION(name, result)
#define ARGUMENT(kind, type, pass, name, null, count)
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
        char *at = (char *)policy + field->offset;
        if (strcmp(field->kind, "DOUBLE") == 0)
            memcpy(at, &(double){strtod(value, NULL)}, 8);
        else if (strcmp(field->kind, "U64") == 0)
            memcpy(at, &(uint64_t){strtoull(value, NULL, 10)}, 8);
        else
            memcpy(at, &(uint32_t){(uint32_t)strtoul(value, NULL, 10)}, 4);
        return 1;
    }
    printf("error no field %s\n", name);
    return 0;
}

/* `settings` is field=value,... or "-"; it is cut into pieces. 0 with a line on stdout on an error.
 */
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
