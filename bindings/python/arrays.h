/* SPDX-License-Identifier: MIT */
/*
 * Python objects as the library's arguments: structs from buffers, lists of tensors from lists of
 * arrays, errors as exceptions. Included by the generated interface only.
 */
#include <Python.h>
#include <stdbool.h>
#include <string.h>

#include "gradscaler.h"

#include "dlpack.h"

/* gradscaler.Error, a ValueError; made by the module's initialisation. */
static PyObject *gsc_py_error;

static void gsc_py_set(PyObject *object, const char *name, PyObject *value)
{
    if (value) {
        PyObject_SetAttrString(object, name, value);
        Py_DECREF(value);
    }
}

/* What a message of the library says to do, as it is done in Python. */
static PyObject *gsc_py_reworded(PyObject *text)
{
    static const char *const words[][2] = {
        {"ask for GSC_WANT_", "pass want=Want."},
        {"no gsc_state_init or gsc_factor_init made it", "no Scaler made it"},
    };
    for (size_t i = 0; text && i < sizeof words / sizeof *words; i++) {
        PyObject *from = PyUnicode_FromString(words[i][0]), *to = PyUnicode_FromString(words[i][1]);
        PyObject *reworded = from && to ? PyUnicode_Replace(text, from, to, -1) : NULL;
        Py_XDECREF(from);
        Py_XDECREF(to);
        Py_DECREF(text);
        text = reworded;
    }
    return text;
}

static void gsc_py_raise(const gsc_error *err)
{
    /* A message may have been cut inside a character. */
    PyObject *text = gsc_py_reworded(
        PyUnicode_DecodeUTF8(err->message, (Py_ssize_t)strlen(err->message), "replace"));
    PyObject *error = text ? PyObject_CallFunctionObjArgs(gsc_py_error, text, NULL) : NULL;
    Py_XDECREF(text);
    if (!error)
        return;
    gsc_py_set(error, "status", PyLong_FromLong(err->status));
    gsc_py_set(error, "argument", PyLong_FromLong(err->argument));
    gsc_py_set(error, "index", PyLong_FromLongLong(err->index));
    gsc_py_set(error, "name",
               PyUnicode_DecodeUTF8(err->name, (Py_ssize_t)strlen(err->name), "replace"));
    PyErr_SetObject(gsc_py_error, error);
    Py_DECREF(error);
}

/* What to do about an array whose owner, or who exports it, says this. */
static const char *gsc_py_remedy(const char *message)
{
    if (strstr(message, "contiguous"))
        return "; pass a contiguous copy";
    if (strstr(message, "read-only") || strstr(message, "readonly") ||
        strstr(message, "not writable"))
        return "; pass a writable copy";
    return "";
}

/* Raises Error for tensor `index` of a list. */
static bool gsc_py_raise_at(gsc_status status, const char *list, Py_ssize_t index, PyObject *text)
{
    gsc_error err = {.status = status, .argument = -1, .index = index};
    const char *message = text ? PyUnicode_AsUTF8AndSize(text, NULL) : NULL;
    PyErr_Clear(); /* of a text that is none */
    if (!message)
        message = "not usable";
    PyOS_snprintf(err.name, sizeof err.name, "%s[%lld]", list, (long long)index);
    PyOS_snprintf(err.message, sizeof err.message, "%s[%lld]: %.165s%s", list, (long long)index,
                  message, gsc_py_remedy(message));
    Py_XDECREF(text);
    gsc_py_raise(&err);
    return false;
}

/* ---- structs ---- */

/*
 * A struct from any buffer of its size, as an aligned copy that no Python code can change during
 * the call; None is NULL. A struct that grows says its own size, which must be this one.
 */
static bool gsc_py_struct(PyObject *object, Py_buffer *view, void *copy, size_t size, bool grows,
                          bool writable, const char *name)
{
    if (object == Py_None)
        return true;
    if (PyObject_GetBuffer(object, view, writable ? PyBUF_WRITABLE : PyBUF_SIMPLE) != 0) {
        PyErr_Format(PyExc_TypeError, "%s must be a gradscaler struct, not %R", name,
                     (PyObject *)Py_TYPE(object));
        return false;
    }
    uint32_t own_size = (uint32_t)size;
    if (grows && view->len >= 4)
        memcpy(&own_size, view->buf, sizeof own_size);
    if ((size_t)view->len != size || own_size != size) {
        PyErr_Format(PyExc_ValueError, "%s has %zd bytes (struct_size %u), %zu are needed", name,
                     view->len, (unsigned)own_size, size);
        return false;
    }
    memcpy(copy, view->buf, size);
    return true;
}

static void gsc_py_release(Py_buffer *view)
{
    if (view->obj)
        PyBuffer_Release(view);
}

/* ---- contexts ---- */

static const char gsc_py_context_name[] = "gsc_context";

static void gsc_py_context_end(PyObject *capsule)
{
    gsc_context_destroy(PyCapsule_GetPointer(capsule, gsc_py_context_name));
}

static PyObject *gsc_py_context(gsc_context *context)
{
    PyObject *capsule = PyCapsule_New(context, gsc_py_context_name, gsc_py_context_end);
    if (!capsule)
        gsc_context_destroy(context);
    return capsule;
}

static bool gsc_py_exec(PyObject *object, gsc_exec *exec)
{
    if (object == Py_None)
        return true;
    if (!PyCapsule_IsValid(object, gsc_py_context_name)) {
        PyErr_Format(PyExc_TypeError, "on must be a context or None, not %R",
                     (PyObject *)Py_TYPE(object));
        return false;
    }
    exec->context = PyCapsule_GetPointer(object, gsc_py_context_name);
    return true;
}

/* ---- tensors ---- */

typedef struct gsc_py_list {
    Py_ssize_t n;
    gsc_tensor *tensors;
    Py_buffer *views;
} gsc_py_list;

/* What one call takes: a list, and the list it writes to, which may be the same. */
typedef struct gsc_py_lists {
    gsc_py_list in, out;
    uint64_t bytes;
    bool borrowed; /* of a capsule, which the caller's arguments keep alive */
} gsc_py_lists;

/* Names as NumPy and ml_dtypes have them, and formats of buffers; cb16 is gradscaler.cb16. */
static const struct {
    const char *name;
    uint32_t dtype;
    const char *format;
} gsc_py_dtypes[] = {
    {"float32", GSC_F32, "f"},
    {"float64", GSC_F64, "d"},
    {"float16", GSC_F16, "e"},
    {"bfloat16", GSC_BF16, ""},
    {"float8_e4m3fn", GSC_F8_E4M3FN, ""},
    {"float8_e5m2", GSC_F8_E5M2, ""},
    {"[('cb16', '<u2')]", GSC_CB16, "T{H:cb16:}"},
    {"complex64", GSC_COMPLEX64, "Zf"},
    {"complex128", GSC_COMPLEX128, "Zd"},
};
enum { GSC_PY_DTYPES = sizeof gsc_py_dtypes / sizeof *gsc_py_dtypes };

/* The dtype that an array names; the last dtype objects are found by identity. */
static uint32_t gsc_py_dtype(PyObject *dtype)
{
    enum { SLOTS = 32 };
    static PyObject *seen[SLOTS];
    static uint32_t codes[SLOTS];
    static unsigned count;
    for (int i = 0; i < SLOTS && seen[i]; i++)
        if (seen[i] == dtype)
            return codes[i];
    PyObject *text = PyObject_Str(dtype);
    const char *name = text ? PyUnicode_AsUTF8AndSize(text, NULL) : NULL;
    uint32_t code = 0;
    PyErr_Clear();
    for (int i = 0; name && i < GSC_PY_DTYPES; i++)
        if (strcmp(name, gsc_py_dtypes[i].name) == 0)
            code = gsc_py_dtypes[i].dtype;
    Py_XDECREF(text);
    if (code) { /* unpickled ones of cb16 are new each time */
        PyObject *last = seen[count % SLOTS];
        Py_INCREF(dtype);
        seen[count % SLOTS] = dtype;
        codes[count++ % SLOTS] = code;
        Py_XDECREF(last);
    }
    return code;
}

static uint32_t gsc_py_format(const char *format)
{
    if (format && format[0] && strchr("<=@", format[0]))
        format++;
    for (int i = 0; format && format[0] && i < GSC_PY_DTYPES; i++)
        if (strcmp(format, gsc_py_dtypes[i].format) == 0)
            return gsc_py_dtypes[i].dtype;
    return 0;
}

/* Raises Error with the text of the exception that is set. */
static bool gsc_py_reraise_at(const char *list, Py_ssize_t index)
{
    PyObject *type, *value, *trace;
    if (!PyErr_ExceptionMatches(PyExc_BufferError) && !PyErr_ExceptionMatches(PyExc_TypeError) &&
        !PyErr_ExceptionMatches(PyExc_ValueError))
        return false;
    PyErr_Fetch(&type, &value, &trace);
    PyObject *text = value ? PyObject_Str(value) : NULL;
    PyErr_Clear();
    Py_XDECREF(type);
    Py_XDECREF(value);
    Py_XDECREF(trace);
    return gsc_py_raise_at(GSC_ERROR_VALUE, list, index, text);
}

static PyObject *gsc_py_unsupported(PyObject *dtype, const Py_buffer *view)
{
    const char *format = dtype || !view->format ? "B" : view->format;
    PyObject *text = dtype ? PyUnicode_FromFormat("dtype %S is not supported: pass ", dtype)
                           : PyUnicode_FromFormat("format %s is not supported: pass ", format);
    for (int i = 0; text && i < GSC_PY_DTYPES; i++) {
        const char *name = gsc_py_dtypes[i].name, *between = i + 2 < GSC_PY_DTYPES ? ", " : " or ";
        PyUnicode_AppendAndDel(
            &text, PyUnicode_FromFormat("%s%s", name[0] == '[' ? "gradscaler.cb16" : name,
                                        i + 1 < GSC_PY_DTYPES ? between : ""));
    }
    return text;
}

/* An array without a buffer, or one that a device call takes. */
static bool gsc_py_dlpack(PyObject *array, Py_buffer *view, gsc_tensor *tensor, bool writable,
                          const gsc_py_place *place, const char *list, Py_ssize_t index)
{
    gsc_status status;
    PyObject *why, *capsule = gsc_py_export(array, place);
    if (!capsule && (why = gsc_py_why_elsewhere(array, place)))
        return gsc_py_raise_at(GSC_ERROR_VALUE, list, index, why);
    if (!capsule)
        return gsc_py_reraise_at(list, index);
    if (!gsc_py_from_capsule(capsule, view, tensor, writable, place, &status, &why)) {
        PyObject *dtype =
            status == GSC_ERROR_DTYPE ? PyObject_GetAttr(array, gsc_py_dtype_name) : NULL;
        PyObject *named = dtype ? gsc_py_unsupported(dtype, NULL) : NULL;
        PyErr_Clear();
        Py_XDECREF(dtype);
        if (named)
            Py_XDECREF(why);
        Py_DECREF(capsule);
        return gsc_py_raise_at(status, list, index, named ? named : why);
    }
    view->obj = capsule;
    return true;
}

/* One array: its buffer, and its dtype by attribute (NumPy and its kin) or by format. */
static bool gsc_py_tensor(PyObject *array, Py_buffer *view, gsc_tensor *tensor, bool writable,
                          const gsc_py_place *place, const char *list, Py_ssize_t index)
{
    bool has_buffer = PyObject_CheckBuffer(array); /* JAX: of the host's arrays only */
    if ((!has_buffer || place->device >= 0) && PyObject_HasAttr(array, gsc_py_dlpack_name))
        return gsc_py_dlpack(array, view, tensor, writable, place, list, index);
    if (has_buffer && place->device >= 0)
        return gsc_py_raise_at(GSC_ERROR_VALUE, list, index,
                               gsc_py_misplaced(place, GSC_DL_CPU, 0));
    PyObject *dtype = PyObject_GetAttr(array, gsc_py_dtype_name);
    if (!dtype) {
        if (!PyErr_ExceptionMatches(PyExc_AttributeError))
            return false;
        PyErr_Clear();
    }
    int flags = PyBUF_ANY_CONTIGUOUS | (writable ? PyBUF_WRITABLE : 0) | (dtype ? 0 : PyBUF_FORMAT);
    if (PyObject_GetBuffer(array, view, flags) != 0) {
        Py_XDECREF(dtype);
        return gsc_py_reraise_at(list, index);
    }
    uint32_t code = dtype ? gsc_py_dtype(dtype) : gsc_py_format(view->format);
    if (!code || gsc_dtype_size(code) != (uint64_t)view->itemsize) {
        PyObject *text = gsc_py_unsupported(dtype, view);
        PyErr_Clear();
        Py_XDECREF(dtype);
        return gsc_py_raise_at(GSC_ERROR_DTYPE, list, index, text);
    }
    Py_XDECREF(dtype);
    *tensor = (gsc_tensor){view->buf, (uint64_t)(view->len / view->itemsize), code, 0};
    return true;
}

static const gsc_py_place gsc_py_host = {-1, NULL};

static void gsc_py_list_release(gsc_py_list *list)
{
    for (Py_ssize_t i = 0; i < list->n; i++)
        PyBuffer_Release(&list->views[i]);
    PyMem_Free(list->tensors);
    PyMem_Free(list->views);
    memset(list, 0, sizeof *list);
}

static void gsc_py_lists_release(gsc_py_lists *lists)
{
    if (lists->borrowed)
        return;
    gsc_py_list_release(&lists->in);
    gsc_py_list_release(&lists->out);
}

static bool gsc_py_list_of(PyObject *object, gsc_py_list *list, bool writable,
                           const gsc_py_place *place, const char *name)
{
    PyObject *items = PySequence_List(object); /* also keeps the arrays alive meanwhile */
    if (!items) {
        if (PyErr_ExceptionMatches(PyExc_TypeError))
            PyErr_Format(PyExc_TypeError, "%s must be a list of arrays, not %R", name,
                         (PyObject *)Py_TYPE(object));
        return false;
    }
    Py_ssize_t n = PyList_Size(items);
    list->tensors = PyMem_Calloc((size_t)n + 1, sizeof *list->tensors);
    list->views = PyMem_Calloc((size_t)n + 1, sizeof *list->views);
    bool ok = list->tensors && list->views;
    if (!ok)
        PyErr_NoMemory();
    for (Py_ssize_t i = 0; ok && i < n; i++, list->n += ok)
        ok = gsc_py_tensor(PyList_GetItem(items, i), &list->views[i], &list->tensors[i], writable,
                           place, name, i);
    /* A view that was filled before its dtype was refused is not counted in list->n yet. */
    if (!ok && list->views && list->n < n && list->views[list->n].obj)
        PyBuffer_Release(&list->views[list->n]);
    Py_DECREF(items);
    return ok;
}

/* Input and output must agree in shape and order, or elements would change places. */
static bool gsc_py_same_layout(const Py_buffer *a, const Py_buffer *b)
{
    if (a->ndim == 0 && b->ndim == 0)
        return true;
    if (a->ndim != b->ndim || memcmp(a->shape, b->shape, (size_t)a->ndim * sizeof *a->shape) != 0)
        return false;
    if ((PyBuffer_IsContiguous(a, 'C') && PyBuffer_IsContiguous(b, 'C')) ||
        (PyBuffer_IsContiguous(a, 'F') && PyBuffer_IsContiguous(b, 'F')))
        return true;
    for (int i = 0; i < a->ndim; i++)
        if (!a->strides || !b->strides ||
            (a->shape[i] > 1 && a->strides[i] / a->itemsize != b->strides[i] / b->itemsize))
            return false;
    return true;
}

/* Refuses a list that would write to the same array twice; a hash set of the addresses. */
static bool gsc_py_distinct(const gsc_py_list *list, const char *name)
{
    size_t slots = 8;
    while (slots < 2 * (size_t)list->n)
        slots *= 2;
    Py_ssize_t *first = PyMem_Malloc(slots * sizeof *first); /* index + 1, 0 is free */
    if (!first) {
        PyErr_NoMemory();
        return false;
    }
    memset(first, 0, slots * sizeof *first);
    bool ok = true;
    for (Py_ssize_t i = 0; ok && i < list->n; i++) {
        const char *at = list->tensors[i].data;
        size_t slot = ((uintptr_t)at >> 4) * 0x9E3779B97F4A7C15u & (slots - 1);
        if (list->tensors[i].count == 0)
            continue;
        while (first[slot] && list->tensors[first[slot] - 1].data != at)
            slot = (slot + 1) & (slots - 1);
        if (first[slot])
            ok = gsc_py_raise_at(GSC_ERROR_OVERLAP, name, i,
                                 PyUnicode_FromFormat("the same array as %s[%zd]: it would be "
                                                      "written twice",
                                                      name, first[slot] - 1));
        first[slot] = i + 1;
    }
    PyMem_Free(first);
    return ok;
}

static uint64_t gsc_py_bytes(const gsc_py_list *list)
{
    uint64_t bytes = 0;
    for (Py_ssize_t i = 0; i < list->n; i++)
        bytes += (uint64_t)list->views[i].len;
    return bytes;
}

/* out is tensors itself for a call in place, NULL for one that only reads. */
static bool gsc_py_lists_of(PyObject *tensors, PyObject *out, gsc_py_lists *lists,
                            const gsc_py_place *place)
{
    bool in_place = tensors == out;
    if (!gsc_py_list_of(tensors, &lists->in, in_place, place, "tensors"))
        return false;
    lists->bytes = gsc_py_bytes(&lists->in);
    if (!out)
        return true;
    if (in_place)
        return gsc_py_distinct(&lists->in, "tensors");
    if (!gsc_py_list_of(out, &lists->out, true, place, "out"))
        return false;
    if (lists->in.n != lists->out.n) {
        PyErr_Format(PyExc_ValueError, "%zd tensors and %zd outputs", lists->in.n, lists->out.n);
        return false;
    }
    for (Py_ssize_t i = 0; i < lists->in.n; i++)
        if (!gsc_py_same_layout(&lists->in.views[i], &lists->out.views[i]))
            return gsc_py_raise_at(GSC_ERROR_COUNT, "out", i,
                                   PyUnicode_FromString("shape or memory order differs"));
    return gsc_py_distinct(&lists->out, "out");
}

/* `pair` is (tensors, out). */
static bool gsc_py_pair(PyObject *pair, gsc_py_lists *lists)
{
    if (!PyTuple_Check(pair) || PyTuple_Size(pair) != 2) {
        PyErr_SetString(PyExc_TypeError, "expected a tuple (tensors, out)");
        return false;
    }
    return gsc_py_lists_of(PyTuple_GetItem(pair, 0), PyTuple_GetItem(pair, 1), lists, &gsc_py_host);
}

/* ---- lists that are held ---- */

static const char gsc_py_held_name[] = "gradscaler.Arrays", gsc_py_cuda_name[] = "gradscaler.cuda";

static void gsc_py_held_end(PyObject *capsule)
{
    gsc_py_lists *lists = PyCapsule_GetPointer(capsule, PyCapsule_GetName(capsule));
    gsc_py_lists_release(lists);
    PyMem_Free(lists);
}

static PyObject *gsc_py_hold_lists(PyObject *tensors, PyObject *out, const gsc_py_place *place,
                                   const char *name)
{
    PyObject *capsule = NULL;
    gsc_py_lists *lists = PyMem_Calloc(1, sizeof *lists);
    if (!lists)
        return PyErr_NoMemory();
    if (gsc_py_lists_of(tensors, out, lists, place))
        capsule = PyCapsule_New(lists, name, gsc_py_held_end);
    if (!capsule) {
        gsc_py_lists_release(lists);
        PyMem_Free(lists);
    }
    return capsule;
}

/*
 * hold(tensors, out): the pair as a capsule, which every call takes in its place, and in place of
 * the list `tensors`. The arrays' buffers stay exported as long as it lives.
 */
static PyObject *gsc_py_hold(PyObject *self, PyObject *args)
{
    PyObject *tensors, *out;
    (void)self;
    if (!PyArg_ParseTuple(args, "OO", &tensors, &out))
        return NULL;
    return gsc_py_hold_lists(tensors, out, &gsc_py_host, gsc_py_held_name);
}

static bool gsc_py_held(PyObject *object, gsc_py_lists *lists)
{
    if (!PyCapsule_IsValid(object, gsc_py_held_name))
        return false;
    *lists = *(const gsc_py_lists *)PyCapsule_GetPointer(object, gsc_py_held_name);
    lists->borrowed = true;
    return true;
}

/* ---- CUDA ---- */

/*
 * cuda_open(ordinal): a context on a device, as a number; it lives as long as the process.
 * cuda_hold(tensors, out, device, order): lists of arrays there, exported for as long as the
 *     capsule lives; out is None for a call that only reads, tensors itself for one in place;
 *     `order` is what DLPack is told of the stream.
 * cuda_call(function, context, stream, workspace, size, factor, limit, held, want, report):
 *     gsc_<function> of what is held; workspace, factor and report are addresses on the device.
 *     Returns the bytes of workspace that are needed if `size` is less; then all arguments have
 * been checked, and nothing was done. Else 0.
 */
static PyObject *gsc_py_cuda_open(PyObject *self, PyObject *args)
{
    int ordinal;
    gsc_context *context;
    gsc_error err;
    (void)self;
    if (!PyArg_ParseTuple(args, "i", &ordinal))
        return NULL;
    if (gsc_context_create_cuda(ordinal, &context, &err) != GSC_OK)
        return gsc_py_raise(&err), NULL;
    return PyLong_FromVoidPtr(context);
}

static PyObject *gsc_py_cuda_hold(PyObject *self, PyObject *args)
{
    PyObject *tensors, *out;
    gsc_py_place place;
    (void)self;
    if (!PyArg_ParseTuple(args, "OOiO", &tensors, &out, &place.device, &place.stream))
        return NULL;
    return gsc_py_hold_lists(tensors, out == Py_None ? NULL : out, &place, gsc_py_cuda_name);
}

static gsc_status gsc_py_cuda_run(const char *function, const gsc_exec *on,
                                  const gsc_factor *factor, double limit, const gsc_py_lists *lists,
                                  uint32_t want, gsc_report *report, gsc_error *err)
{
    const gsc_tensor *in = lists->in.tensors;
    const gsc_tensor *out = lists->out.tensors ? lists->out.tensors : in;
    uint64_t n = (uint64_t)lists->in.n;
    if (strcmp(function, "check") == 0)
        return gsc_check(on, factor, in, n, want, report, err);
    if (strcmp(function, "clip_value") == 0)
        return gsc_clip_value(on, factor, limit, in, out, n, want, report, err);
    if (strcmp(function, "accumulate") == 0)
        return gsc_accumulate(on, factor, in, out, n, want, report, err);
    return gsc_unscale(on, factor, in, out, n, want, report, err);
}

static PyObject *gsc_py_cuda_call(PyObject *self, PyObject *args)
{
    const char *function;
    unsigned long long context, stream, workspace, size, factor, report;
    unsigned want;
    double limit;
    PyObject *held;
    gsc_error err;
    uint64_t needed = 0;
    (void)self;
    if (!PyArg_ParseTuple(args, "sKKKKKdOIK", &function, &context, &stream, &workspace, &size,
                          &factor, &limit, &held, &want, &report))
        return NULL;
    const gsc_py_lists *lists = PyCapsule_GetPointer(held, gsc_py_cuda_name);
    if (!lists)
        return NULL;
    gsc_exec on = GSC_EXEC_INIT;
    on.context = (gsc_context *)(uintptr_t)context;
    on.stream = (void *)(uintptr_t)stream;
    on.workspace = (void *)(uintptr_t)workspace;
    on.workspace_size = size;
    PyThreadState *thread = PyEval_SaveThread();
    gsc_status status = gsc_py_cuda_run(function, &on, (const gsc_factor *)(uintptr_t)factor, limit,
                                        lists, want, (gsc_report *)(uintptr_t)report, &err);
    if (status == GSC_ERROR_CAPACITY) /* all else is right */
        status =
            gsc_workspace_size(&on, lists->in.tensors, (uint64_t)lists->in.n, want, &needed, &err);
    PyEval_RestoreThread(thread);
    if (status != GSC_OK)
        return gsc_py_raise(&err), NULL;
    return PyLong_FromUnsignedLongLong(needed);
}

/* ---- module ---- */

static bool gsc_py_init(PyObject *module)
{
    if (!gsc_py_error) /* a second import keeps the class that handlers know */
        gsc_py_error = PyErr_NewExceptionWithDoc(
            "gradscaler.Error",
            "What a call refused: `status` (GSC_ERROR_*), `argument` (position in the C call), "
            "`index` of the tensor or -1, `name` of what was wrong. Nothing was changed, unless a "
            "device failed when others had begun.",
            PyExc_ValueError, NULL);
    if (!gsc_py_dlpack_name)
        gsc_py_dlpack_name = PyUnicode_InternFromString("__dlpack__");
    if (!gsc_py_dtype_name)
        gsc_py_dtype_name = PyUnicode_InternFromString("dtype");
    if (!gsc_py_error || !gsc_py_dlpack_name || !gsc_py_dtype_name)
        return false;
    Py_INCREF(gsc_py_error);
    return PyModule_AddObject(module, "Error", gsc_py_error) == 0;
}
