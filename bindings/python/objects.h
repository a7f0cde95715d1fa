/* SPDX-License-Identifier: MIT */
/*
 * Converts Python objects to the library's arguments, except arrays: structs and options from
 * buffers, contexts and their memory as objects that free themselves; raises errors as exceptions.
 */
#include <Python.h>
#include <math.h>
#include <stdbool.h>
#include <stddef.h>
#include <string.h>
#include <structmember.h>

#include "gradscaler_cuda.h"

/* ---- errors ---- */

/* gradscaler.Error, a ValueError; made by the module's initialisation. */
static PyObject *gsc_py_error;

static PyObject *gsc_py_text(const char *text)
{
    return PyUnicode_DecodeUTF8(text, (Py_ssize_t)strlen(text), "replace");
}

static void gsc_py_set(PyObject *object, const char *name, PyObject *value)
{
    if (value) {
        PyObject_SetAttrString(object, name, value);
        Py_DECREF(value);
    }
}

static PyObject *gsc_py_number_or_none(double value)
{
    return isnan(value) ? Py_NewRef(Py_None) : PyFloat_FromDouble(value);
}

/*
 * Raises Error with the sentence `where` `why`; takes both references. In an overlap error, the
 * value is the index of the other array. The library counts bytes, Python characters: `why` and
 * `requirement` are texts of their own.
 */
static void gsc_py_raise_as(const gsc_error *err, PyObject *where, PyObject *why)
{
    const bool has_other = err->status == GSC_ERROR_OVERLAP && !isnan(err->value);
    PyObject *text = where && why ? PyUnicode_FromFormat("%U%U", where, why) : NULL;
    PyObject *error = text ? PyObject_CallFunctionObjArgs(gsc_py_error, text, NULL) : NULL;
    const char *requirement = err->requirement_start ? err->message + err->requirement_start : "";
    if (error) {
        gsc_py_set(error, "status", PyLong_FromLong(err->status));
        gsc_py_set(error, "argument", PyLong_FromLong(err->argument));
        gsc_py_set(error, "index", PyLong_FromLongLong(err->index));
        gsc_py_set(error, "other", PyLong_FromLongLong(has_other ? (int64_t)err->value : -1));
        gsc_py_set(error, "name", gsc_py_text(err->name));
        gsc_py_set(error, "field", gsc_py_text(err->field));
        gsc_py_set(error, "value", gsc_py_number_or_none(has_other ? NAN : err->value));
        gsc_py_set(error, "low", gsc_py_number_or_none(err->low));
        gsc_py_set(error, "high", gsc_py_number_or_none(err->high));
        gsc_py_set(error, "subject_length", PyLong_FromSsize_t(PyUnicode_GetLength(where)));
        gsc_py_set(error, "why", Py_NewRef(why));
        gsc_py_set(error, "requirement", gsc_py_text(requirement));
        PyErr_SetObject(gsc_py_error, error);
    }
    Py_XDECREF(error);
    Py_XDECREF(text);
    Py_XDECREF(where);
    Py_XDECREF(why);
}

static void gsc_py_raise(const gsc_error *err)
{
    size_t length = strlen(err->message),
           subject = err->subject_length < length ? err->subject_length : 0;
    gsc_py_raise_as(err, PyUnicode_DecodeUTF8(err->message, (Py_ssize_t)subject, "replace"),
                    gsc_py_text(err->message + subject));
}

/*
 * Raises Error for array `index` of a list, or with index -1 for one array; `why` follows its name.
 * If the array is only on another device, pass GSC_OK as `status`; the error then has the field
 * "device".
 */
static bool gsc_py_raise_at(gsc_status status, const char *list, Py_ssize_t index, PyObject *why)
{
    gsc_error err = {.status = status, .argument = -1, .index = index};
    err.value = err.low = err.high = NAN;
    PyOS_snprintf(err.name, sizeof err.name, "%s", list);
    if (status == GSC_OK) {
        err.status = GSC_ERROR_VALUE;
        PyOS_snprintf(err.field, sizeof err.field, "device");
    }
    PyErr_Clear(); /* an earlier exception: `why` describes it, or could not be made */
    gsc_py_raise_as(&err,
                    index < 0 ? PyUnicode_FromFormat("%s ", list)
                              : PyUnicode_FromFormat("%s[%zd] ", list, index),
                    why ? why : PyUnicode_FromString("cannot be used"));
    return false;
}

/* ---- results ---- */

/* Adds a value to a call's result, which is None at first. Takes both references. */
static PyObject *gsc_py_with(PyObject *result, PyObject *value)
{
    if (result == Py_None) {
        Py_DECREF(result);
        return value;
    }
    const bool several = result && PyTuple_Check(result);
    PyObject *before = several ? Py_NewRef(result) : result ? PyTuple_Pack(1, result) : NULL;
    PyObject *last = value ? PyTuple_Pack(1, value) : NULL;
    PyObject *all = before && last ? PySequence_Concat(before, last) : NULL;
    Py_XDECREF(before);
    Py_XDECREF(last);
    Py_XDECREF(result);
    Py_XDECREF(value);
    return all;
}

/* ---- memory of contexts ---- */

/* Memory of a context; it has the buffer protocol if it is visible to the host. */
typedef struct gsc_py_memory {
    PyObject_HEAD PyObject *context; /* kept alive */
    void *at;
    uint64_t size;
    bool visible;
} gsc_py_memory;

static PyTypeObject *gsc_py_memory_type;

static const char gsc_py_context_name[] = "gsc_context";

static void gsc_py_context_end(PyObject *capsule)
{
    gsc_context_destroy(PyCapsule_GetPointer(capsule, gsc_py_context_name));
}

/*
 * Makes the capsule of a context; `device` is a CUDA ordinal, or -1. A context on a device lives as
 * long as the process: a thread can be in a call when the interpreter ends.
 */
static PyObject *gsc_py_context(gsc_context *context, int device)
{
    PyObject *capsule =
        PyCapsule_New(context, gsc_py_context_name, device < 0 ? gsc_py_context_end : NULL);
    if (!capsule)
        gsc_context_destroy(context);
    else if (PyCapsule_SetContext(capsule, (void *)((intptr_t)device + 1)) != 0)
        Py_CLEAR(capsule);
    return capsule;
}

/* Returns the context in a capsule, NULL for None. */
static gsc_context *gsc_py_context_in(PyObject *object)
{
    return object == Py_None ? NULL : PyCapsule_GetPointer(object, gsc_py_context_name);
}

/* Reads the context of an argument, and its device. */
static bool gsc_py_context_of(PyObject *object, gsc_context **context, int *device)
{
    *context = NULL;
    *device = -1;
    if (object == Py_None)
        return true;
    if (!PyCapsule_IsValid(object, gsc_py_context_name)) {
        PyErr_Format(PyExc_TypeError, "exec must be a context or None, not %R",
                     (PyObject *)Py_TYPE(object));
        return false;
    }
    *context = gsc_py_context_in(object);
    *device = (int)(intptr_t)PyCapsule_GetContext(object) - 1;
    return true;
}

static PyObject *gsc_py_memory_new(PyObject *context, void *at, uint64_t size, bool visible)
{
    PyObject *self = PyType_GenericAlloc(gsc_py_memory_type, 0);
    if (!self) {
        gsc_memory_destroy(gsc_py_context_in(context), at);
        return NULL;
    }
    gsc_py_memory *memory = (gsc_py_memory *)self;
    memory->context = Py_NewRef(context);
    memory->at = at;
    memory->size = size;
    memory->visible = visible;
    return self;
}

static void gsc_py_memory_end(PyObject *self)
{
    gsc_py_memory *memory = (gsc_py_memory *)self;
    PyTypeObject *type = Py_TYPE(self);
    freefunc release = (freefunc)PyType_GetSlot(type, Py_tp_free);
    if (memory->context) {
        gsc_memory_destroy(gsc_py_context_in(memory->context), memory->at);
        Py_DECREF(memory->context);
    }
    release(self);
    Py_DECREF(type);
}

static int gsc_py_memory_buffer(PyObject *self, Py_buffer *view, int flags)
{
    gsc_py_memory *memory = (gsc_py_memory *)self;
    if (!memory->visible) {
        PyErr_SetString(PyExc_BufferError, "memory of the device");
        view->obj = NULL;
        return -1;
    }
    return PyBuffer_FillInfo(view, self, memory->at, (Py_ssize_t)memory->size, 0, flags);
}

static PyObject *gsc_py_memory_no_new(PyTypeObject *type, PyObject *args, PyObject *keywords)
{
    (void)type, (void)args, (void)keywords;
    PyErr_SetString(PyExc_TypeError, "gsc_memory_create makes memory");
    return NULL;
}

static PyTypeObject *gsc_py_memory_make_type(void)
{
    static PyMemberDef members[] = {{"address", T_ULONGLONG, offsetof(gsc_py_memory, at), READONLY,
                                     "The address of the first byte."},
                                    {NULL, 0, 0, 0, NULL}};
    static PyType_Slot slots[] = {
        {Py_tp_doc, "Memory of a context; the host reads and writes what it sees as a buffer."},
        {Py_tp_new, (void *)gsc_py_memory_no_new},
        {Py_tp_dealloc, (void *)gsc_py_memory_end},
        {Py_bf_getbuffer, (void *)gsc_py_memory_buffer},
        {Py_tp_members, members},
        {0, NULL},
    };
    static PyType_Spec spec = {"gradscaler._gradscaler.Memory", sizeof(gsc_py_memory), 0,
                               Py_TPFLAGS_DEFAULT, slots};
    return (PyTypeObject *)PyType_FromSpec(&spec);
}

/*
 * A pointer argument: None, Memory, (Memory, offset), an array without a buffer that lends its
 * memory, such as a torch tensor, or any buffer.
 */
typedef struct gsc_py_place {
    Py_buffer view;   /* for a buffer */
    PyObject *memory; /* else the Memory, or the array that lends it */
    void *at;
    uint64_t size;
} gsc_py_place;

/* Returns whether an array lends dense memory that is aligned to 8 bytes; in dlpack.h. */
static bool gsc_py_lent(PyObject *array, void **at, uint64_t *size);

static bool gsc_py_place_of(PyObject *object, gsc_py_place *place, bool writable, const char *name)
{
    PyObject *memory = object;
    unsigned long long offset = 0;
    if (object == Py_None)
        return true;
    if (PyTuple_Check(object) && PyTuple_Size(object) == 2) {
        memory = PyTuple_GetItem(object, 0);
        offset = PyLong_AsUnsignedLongLong(PyTuple_GetItem(object, 1));
        if (PyErr_Occurred())
            return false;
    }
    if (Py_IS_TYPE(memory, gsc_py_memory_type)) {
        const gsc_py_memory *it = (const gsc_py_memory *)memory;
        if (offset > it->size) {
            PyErr_Format(PyExc_ValueError, "%s: the offset is %llu, the memory has %llu bytes",
                         name, offset, (unsigned long long)it->size);
            return false;
        }
        place->at = (char *)it->at + offset;
        place->size = it->size - offset;
        place->memory = Py_NewRef(memory);
        return true;
    }
    if (!PyObject_CheckBuffer(object) && gsc_py_lent(object, &place->at, &place->size)) {
        place->memory = Py_NewRef(object);
        return true;
    }
    if (memory != object ||
        PyObject_GetBuffer(object, &place->view, writable ? PyBUF_WRITABLE : PyBUF_SIMPLE) != 0) {
        PyErr_Format(PyExc_TypeError, "%s must be a buffer%s, not %R", name,
                     writable ? " that can be written" : "", (PyObject *)Py_TYPE(object));
        return false;
    }
    place->at = place->view.buf;
    place->size = (uint64_t)place->view.len;
    return true;
}

static void gsc_py_release(gsc_py_place *place)
{
    if (place->view.obj)
        PyBuffer_Release(&place->view);
    Py_CLEAR(place->memory);
}

static bool gsc_py_fits(const gsc_py_place *place, uint64_t size, const char *name)
{
    if (place->size >= size)
        return true;
    PyErr_Format(PyExc_ValueError, "%s has %llu bytes, %llu are needed", name,
                 (unsigned long long)place->size, (unsigned long long)size);
    return false;
}

/* ---- structs ---- */

/*
 * Reads a struct. From a buffer of its size it makes an aligned copy, which no Python code can
 * change during the call; a struct in Memory is used in place. If the struct `grows`, its first
 * field must be this size, and it must be in host memory.
 */
static bool gsc_py_struct(PyObject *object, gsc_py_place *place, void *copy, size_t size,
                          bool grows, bool writable, const char *name)
{
    if (!gsc_py_place_of(object, place, writable, name) || !place->at)
        return !PyErr_Occurred();
    uint32_t own_size = (uint32_t)size;
    if (grows && !place->memory && place->size >= 4)
        memcpy(&own_size, place->at, sizeof own_size);
    if (place->memory ? grows || place->size < size : place->size != size || own_size != size) {
        PyErr_Format(PyExc_ValueError, "%s has %llu bytes (struct_size %u), %zu are needed", name,
                     (unsigned long long)place->size, (unsigned)own_size, size);
        return false;
    }
    if (!place->memory) {
        memcpy(copy, place->at, size);
        place->at = copy;
    }
    return true;
}

static void gsc_py_struct_back(const gsc_py_place *place, const void *copy, size_t size)
{
    if (place->view.obj && place->at == copy)
        memcpy(place->view.buf, copy, size);
}

/* Many structs in one buffer, or in Memory. */
typedef struct gsc_py_array {
    gsc_py_place place;
    void *copy;
} gsc_py_array;

static bool gsc_py_structs(PyObject *object, gsc_py_array *array, size_t size, bool writable,
                           const char *name)
{
    gsc_py_place *place = &array->place;
    if (!gsc_py_place_of(object, place, writable, name))
        return false;
    if (place->size % size != 0) {
        PyErr_Format(PyExc_ValueError, "%s has %llu bytes, not a multiple of %zu", name,
                     (unsigned long long)place->size, size);
        return false;
    }
    if (place->view.obj && place->size > 0) {
        array->copy = PyMem_Malloc(place->size);
        if (!array->copy) {
            PyErr_NoMemory();
            return false;
        }
        place->at = memcpy(array->copy, place->at, place->size);
    }
    return true;
}

static void gsc_py_structs_release(gsc_py_array *array)
{
    gsc_py_release(&array->place);
    PyMem_Free(array->copy);
}

/* Texts in UTF-8, NULL for None. */
typedef struct gsc_py_names {
    PyObject *list; /* keeps the texts alive */
    char **texts;
    uint64_t n;
} gsc_py_names;

static bool gsc_py_names_of(PyObject *object, gsc_py_names *names, const char *name)
{
    if (object == Py_None)
        return true;
    names->list = PyUnicode_Check(object) || PyBytes_Check(object) ? NULL : PySequence_List(object);
    if (!names->list) {
        if (!PyErr_Occurred() || PyErr_ExceptionMatches(PyExc_TypeError))
            PyErr_Format(PyExc_TypeError, "%s must be a list of texts, not %R", name,
                         (PyObject *)Py_TYPE(object));
        return false;
    }
    names->n = (uint64_t)PyList_Size(names->list);
    names->texts = PyMem_Calloc(names->n + 1, sizeof *names->texts);
    if (!names->texts) {
        PyErr_NoMemory();
        return false;
    }
    for (uint64_t i = 0; i < names->n; i++) {
        PyObject *text = PyList_GetItem(names->list, (Py_ssize_t)i);
        Py_ssize_t length = 0;
        if (text == Py_None)
            continue;
        if (!PyUnicode_Check(text)) {
            PyErr_Format(PyExc_TypeError, "%s[%llu] must be a text or None, not %R", name,
                         (unsigned long long)i, (PyObject *)Py_TYPE(text));
            return false;
        }
        names->texts[i] = (char *)PyUnicode_AsUTF8AndSize(text, &length);
        if (!names->texts[i])
            return false;
        if (strlen(names->texts[i]) != (size_t)length) {
            PyErr_Format(PyExc_ValueError, "%s[%llu]: embedded null character", name,
                         (unsigned long long)i);
            return false;
        }
    }
    return true;
}

static void gsc_py_names_release(gsc_py_names *names)
{
    PyMem_Free(names->texts);
    Py_CLEAR(names->list);
}

/* The number of entries of a list; -1: None is in its place. */
typedef struct gsc_py_length {
    const char *name;
    int64_t n;
} gsc_py_length;

static int64_t gsc_py_length_of(const gsc_py_place *place, size_t size)
{
    return place->view.obj || place->memory ? (int64_t)(place->size / size) : -1;
}

/* Sets the count that lists share; 0 if all are None. */
static bool gsc_py_same_count(const gsc_py_length *lists, size_t n, uint64_t *count)
{
    const gsc_py_length *first = NULL;
    *count = 0;
    for (const gsc_py_length *list = lists; list < lists + n; list++) {
        if (list->n < 0)
            continue;
        if (first && list->n != first->n) {
            PyErr_Format(PyExc_ValueError, "%s has %lld entries, and %s %lld", first->name,
                         (long long)first->n, list->name, (long long)list->n);
            return false;
        }
        first = list;
        *count = (uint64_t)list->n;
    }
    return true;
}

/* ---- options ---- */

/* How Python passes a field of a struct with pointers. */
typedef struct gsc_py_field {
    const char *name;
    size_t offset, size; /* for a pointer: the size of one element */
    char kind;  /* 'i', 'u', 'f': a number; 'b': bytes; 's': a pointer to a struct that is read;
                   't': a pointer to a tensor that is read; 'o': to memory that is written */
    bool grows; /* the struct that is pointed to grows */
} gsc_py_field;

enum { GSC_PY_PLACES = 16 };

/* The memory of one pointer field, held during the call. */
typedef struct gsc_py_held_field {
    const gsc_py_field *field;
    gsc_py_place place;
    void *copy;
} gsc_py_held_field;

typedef struct gsc_py_held_fields {
    int n;
    gsc_py_held_field *of; /* GSC_PY_PLACES of them */
} gsc_py_held_fields;

static bool gsc_py_scalar(PyObject *value, char *to, const gsc_py_field *field)
{
    if (field->kind == 'f') {
        double number = PyFloat_AsDouble(value);
        float narrow = (float)number;
        memcpy(to, field->size == sizeof number ? (void *)&number : (void *)&narrow, field->size);
        return !PyErr_Occurred();
    }
    bool is_unsigned = field->kind == 'u', lost;
    uint64_t number =
        is_unsigned ? PyLong_AsUnsignedLongLong(value) : (uint64_t)PyLong_AsLongLong(value);
    if (PyErr_Occurred())
        return false;
    unsigned spare = 64 - 8 * (unsigned)field->size; /* the host is little-endian */
    lost = is_unsigned ? number << spare >> spare != number
                       : (int64_t)(number << spare) >> spare != (int64_t)number;
    if (lost) {
        PyErr_Format(PyExc_OverflowError, "%s is %S: it does not fit", field->name, value);
        return false;
    }
    memcpy(to, &number, field->size);
    return true;
}

/* Reads an array, a held list of one array, or one double in (Memory, offset); in arrays.h. */
static bool gsc_py_array_of(PyObject *array, gsc_py_place *place, void *tensor, const char *name);

static bool gsc_py_field_of(PyObject *value, char *to, const gsc_py_field *field,
                            gsc_py_held_fields *held)
{
    if (field->kind == 'i' || field->kind == 'u' || field->kind == 'f')
        return gsc_py_scalar(value, to, field);
    if (held->n == GSC_PY_PLACES) {
        PyErr_Format(PyExc_ValueError, "%s: too many fields", field->name);
        return false;
    }
    gsc_py_place *place = &held->of[held->n].place;
    void **copy = &held->of[held->n].copy;
    held->of[held->n++] = (gsc_py_held_field){.field = field};
    if (field->kind == 'b')
        return gsc_py_struct(value, place, to, field->size, false, false, field->name);
    if (field->kind == 's' || field->kind == 't') {
        if (field->kind == 't' && value == Py_None)
            return true;
        *copy = PyMem_Malloc(field->size);
        if (!*copy) {
            PyErr_NoMemory();
            return false;
        }
        if (field->kind == 't') {
            memcpy(to, copy, sizeof *copy);
            return gsc_py_array_of(value, place, *copy, field->name);
        }
        if (!gsc_py_struct(value, place, *copy, field->size, field->grows, false, field->name))
            return false;
    } else if (!gsc_py_place_of(value, place, true, field->name) ||
               (place->at && !gsc_py_fits(place, field->size, field->name))) {
        return false;
    }
    if (((uintptr_t)place->at & 7) != 0) {
        PyErr_Format(PyExc_ValueError, "%s is not aligned to 8 bytes", field->name);
        return false;
    }
    memcpy(to, &place->at, sizeof place->at);
    return true;
}

/* Fills an initialised struct from a dict of its fields. */
static bool gsc_py_fields(PyObject *object, char *to, const gsc_py_field *fields,
                          gsc_py_held_fields *held, const char *name)
{
    PyObject *key, *value;
    Py_ssize_t position = 0;
    if (!PyDict_Check(object)) {
        PyErr_Format(PyExc_TypeError, "%s must be a dict or None, not %R", name,
                     (PyObject *)Py_TYPE(object));
        return false;
    }
    while (PyDict_Next(object, &position, &key, &value)) {
        const gsc_py_field *field = fields;
        while (field->name &&
               !(PyUnicode_Check(key) && PyUnicode_CompareWithASCIIString(key, field->name) == 0))
            field++;
        if (!field->name) {
            PyErr_Format(PyExc_TypeError, "%s: there is no field %R", name, key);
            return false;
        }
        Py_INCREF(value); /* reading it can run code that changes the dict */
        bool ok = gsc_py_field_of(value, to + field->offset, field, held);
        Py_DECREF(value);
        if (!ok)
            return false;
    }
    return true;
}

static void gsc_py_fields_release(gsc_py_held_fields *held)
{
    for (int i = 0; i < held->n; i++) {
        gsc_py_release(&held->of[i].place);
        PyMem_Free(held->of[i].copy);
    }
}

/* Checks that the buffer for `field` has `size` bytes. */
static bool gsc_py_field_fits(const gsc_py_held_fields *held, const char *field, uint64_t size)
{
    for (int i = 0; i < held->n; i++)
        if (strcmp(held->of[i].field->name, field) == 0 && held->of[i].place.at &&
            !gsc_py_fits(&held->of[i].place, size, field))
            return false;
    return true;
}

/* ---- the context of a call ---- */

typedef struct gsc_py_exec {
    gsc_exec exec;
    int device; /* CUDA ordinal; -1: the host */
} gsc_py_exec;

/* Reads None, a context, or (context or None, stream, workspace or None) and, if given, flags. */
static bool gsc_py_exec_of(PyObject *object, gsc_py_exec *on)
{
    PyObject *context = object, *workspace = Py_None;
    unsigned long long stream = 0;
    if (PyTuple_Check(object) &&
        !PyArg_ParseTuple(object, "OKO|I", &context, &stream, &workspace, &on->exec.flags))
        return false;
    if (!gsc_py_context_of(context, &on->exec.context, &on->device))
        return false;
    if (Py_IS_TYPE(workspace, gsc_py_memory_type)) {
        on->exec.workspace = ((const gsc_py_memory *)workspace)->at;
        on->exec.workspace_size = ((const gsc_py_memory *)workspace)->size;
    } else if (workspace != Py_None &&
               !gsc_py_lent(workspace, &on->exec.workspace, &on->exec.workspace_size)) {
        PyErr_Format(PyExc_TypeError, "the workspace must be Memory or a tensor, not %R",
                     (PyObject *)Py_TYPE(workspace));
        return false;
    }
    on->exec.stream = (void *)(uintptr_t)stream;
    return true;
}
