/* SPDX-License-Identifier: MIT */
/*
 * Reads arrays without a buffer, on the host or a CUDA device, through DLPack: DLPack's structs
 * under our own names, and their conversion to a view and a tensor. Included by arrays.h.
 *
 * A type with the C exchange API lends its tensors, which takes nanoseconds. Other types make a
 * capsule by __dlpack__, which takes a microsecond or more.
 */
#include <stdint.h>

enum { GSC_DL_CPU = 1, GSC_DL_CUDA = 2, GSC_DL_CUDA_HOST = 3, GSC_DL_CUDA_MANAGED = 13 };

typedef struct gsc_dl_tensor {
    char *data;
    int32_t device_type, device;
    int32_t ndim;
    uint8_t code, bits;
    uint16_t lanes;
    int64_t *shape, *strides; /* in elements; NULL: row-major */
    uint64_t byte_offset;
} gsc_dl_tensor;

/* The contents of the newer kind of capsule; the older kind begins with the tensor. */
typedef struct gsc_dl_versioned {
    uint32_t major, minor;
    void *manager, (*deleter)(struct gsc_dl_versioned *self);
    uint64_t flags;
    gsc_dl_tensor tensor;
} gsc_dl_versioned;
#define GSC_DL_READ_ONLY 1u

/* The exchange API of a type. */
typedef struct gsc_dl_exchange {
    uint32_t major, minor;
    const struct gsc_dl_exchange *previous;
    void *allocate, *to_managed, *from_managed;
    int (*lend)(void *object, gsc_dl_tensor *out);
    void *current_stream;
} gsc_dl_exchange;

/* Made once, because CPython's attribute cache keeps each new name for a while. */
static PyObject *gsc_py_dlpack_name, *gsc_py_dtype_name, *gsc_py_exchange_name;
static PyObject *gsc_py_conjugated_name, *gsc_py_negated_name;

/* The device on which a call needs its arrays. */
typedef struct gsc_py_where {
    int32_t device;   /* CUDA ordinal; -1: the host */
    PyObject *stream; /* on a device: DLPack's number of the stream */
    bool lent;        /* the producer's own stream: no need to synchronise */
} gsc_py_where;

/* Returns the exchange API of an array's type, in version 1, or NULL. */
static const gsc_dl_exchange *gsc_py_exchange(PyObject *array)
{
    enum { SLOTS = 8 };
    static PyObject *types[SLOTS];
    static const gsc_dl_exchange *found[SLOTS];
    static unsigned count;
    PyObject *type = (PyObject *)Py_TYPE(array);
    for (int i = 0; i < SLOTS && types[i]; i++)
        if (types[i] == type)
            return found[i];
    PyObject *capsule = PyObject_GetAttr(type, gsc_py_exchange_name);
    const gsc_dl_exchange *api = NULL;
    PyErr_Clear();
    if (capsule && PyCapsule_IsValid(capsule, "dlpack_exchange_api"))
        api = PyCapsule_GetPointer(capsule, "dlpack_exchange_api");
    Py_XDECREF(capsule);
    while (api && api->major != 1)
        api = api->previous;
    if (api && !api->lend)
        api = NULL;
    PyObject *last = types[count % SLOTS];
    types[count % SLOTS] = Py_NewRef(type);
    found[count++ % SLOTS] = api;
    Py_XDECREF(last);
    return api;
}

/* Exports an array as a capsule, of the newer kind if the producer supports it. */
static PyObject *gsc_py_export(PyObject *array, const gsc_py_where *where)
{
    PyObject *method = PyObject_GetAttr(array, gsc_py_dlpack_name);
    PyObject *none = PyTuple_New(0), *capsule = NULL;
    PyObject *keywords = Py_BuildValue("{s(ii)}", "max_version", 1, 0);
    bool ok = method && none && keywords;
    if (ok && where->stream)
        ok = PyDict_SetItemString(keywords, "stream", where->stream) == 0;
    if (ok) {
        capsule = PyObject_Call(method, none, keywords);
        if (!capsule && PyErr_ExceptionMatches(PyExc_TypeError)) {
            PyErr_Clear();
            if (PyDict_DelItemString(keywords, "max_version") == 0)
                capsule = PyObject_Call(method, none, keywords);
        }
    }
    Py_XDECREF(method);
    Py_XDECREF(none);
    Py_XDECREF(keywords);
    return capsule;
}

static PyObject *gsc_py_where_name(int32_t type, int32_t device)
{
    if (type == GSC_DL_CPU || type == GSC_DL_CUDA_HOST)
        return PyUnicode_FromString("in host memory");
    if (type == GSC_DL_CUDA || type == GSC_DL_CUDA_MANAGED)
        return PyUnicode_FromFormat("on cuda:%d", (int)device);
    return PyUnicode_FromFormat("on a device of DLPack type %d", (int)type);
}

/* Returns why a call cannot use an array on this device, or NULL if it can. */
static PyObject *gsc_py_misplaced(const gsc_py_where *where, int32_t type, int32_t device)
{
    bool on_cuda = type == GSC_DL_CUDA || type == GSC_DL_CUDA_MANAGED;
    bool on_host = type == GSC_DL_CPU || type == GSC_DL_CUDA_HOST;
    if (where->device < 0 ? on_host : on_cuda && device == where->device)
        return NULL;
    PyObject *is = gsc_py_where_name(type, device), *why = NULL;
    PyObject *wanted =
        gsc_py_where_name(where->device < 0 ? GSC_DL_CPU : GSC_DL_CUDA, where->device);
    if (is && wanted)
        why = PyUnicode_FromFormat("is %U: this call is for arrays %U", is, wanted);
    Py_XDECREF(is);
    Py_XDECREF(wanted);
    return why;
}

/* Returns why the array is on the wrong device, or NULL. Keeps the current exception. */
static PyObject *gsc_py_why_elsewhere(PyObject *array, const gsc_py_where *where)
{
    PyObject *type, *value, *trace, *why = NULL;
    int kind, device;
    PyErr_Fetch(&type, &value, &trace);
    PyObject *at = PyObject_CallMethod(array, "__dlpack_device__", NULL);
    if (at && PyTuple_Check(at) && PyArg_ParseTuple(at, "ii", &kind, &device))
        why = gsc_py_misplaced(where, kind, device);
    Py_XDECREF(at);
    PyErr_Restore(type, value, trace);
    return why;
}

/* Returns whether the elements fill their memory without gaps, in any order of dimensions. */
static bool gsc_py_is_dense(const gsc_dl_tensor *t, uint64_t count)
{
    int64_t stride = 1;
    bool found = t->strides && count > 0; /* no strides: row-major */
    if (!found)
        return true;
    for (int32_t i = t->ndim; found && i-- > 0; stride *= t->shape[i])
        found = t->shape[i] == 1 || t->strides[i] == stride;
    if (found)
        return true; /* row-major after all */
    for (stride = 1, found = true; found;) {
        found = false;
        for (int32_t i = 0; i < t->ndim && !found; i++)
            if ((found = t->shape[i] > 1 && t->strides[i] == stride))
                stride *= t->shape[i];
    }
    return (uint64_t)stride == count;
}

/*
 * Fills a view and a tensor; else returns why not, with *status GSC_OK if the array is only on
 * another device. The strides count elements, so the view's itemsize is 1.
 */
static PyObject *gsc_py_view(const gsc_dl_tensor *t, Py_buffer *view, gsc_tensor *tensor,
                             const gsc_py_where *where, gsc_status *status)
{
    uint32_t dtype = 0;
    uint64_t count = 1;
    PyObject *why = gsc_py_misplaced(where, t->device_type, t->device);
    *status = why ? GSC_OK : GSC_ERROR_VALUE;
    if (why)
        return why;
    for (int i = 0; i < GSC_PY_DTYPES; i++)
        if (gsc_py_dtypes[i].code == t->code && gsc_py_dtypes[i].bits == t->bits && t->lanes == 1)
            dtype = gsc_py_dtypes[i].dtype;
    if (!dtype) {
        *status = GSC_ERROR_DTYPE;
        return PyUnicode_FromFormat("has a DLPack dtype of code %d and %d bits, which is not "
                                    "supported",
                                    (int)t->code, (int)t->bits);
    }
    for (int32_t i = 0; i < t->ndim; i++)
        count *= (uint64_t)t->shape[i];
    if (!gsc_py_is_dense(t, count))
        return PyUnicode_FromString("is not contiguous: pass a contiguous copy");
    if (!t->data && count > 0)
        return PyUnicode_FromString("has no memory of its own");
    *view = (Py_buffer){.buf = t->data ? t->data + t->byte_offset : NULL,
                        .len = (Py_ssize_t)(count * gsc_dtype_size(dtype)),
                        .itemsize = 1,
                        .ndim = t->ndim,
                        .shape = (Py_ssize_t *)t->shape,
                        .strides = (Py_ssize_t *)t->strides};
    *tensor = (gsc_tensor){.data = view->buf, .count = count, .dtype = dtype};
    return NULL;
}

/* Returns whether a method without arguments returns True; a missing method counts as False. */
static bool gsc_py_says(PyObject *array, PyObject *name)
{
    PyObject *answer = PyObject_CallMethodObjArgs(array, name, NULL);
    bool yes = answer == Py_True;
    Py_XDECREF(answer);
    PyErr_Clear();
    return yes;
}

/* Reads the tensor that an array lends. If it fails, sets *why or an exception. */
static bool gsc_py_lend(const gsc_dl_exchange *api, PyObject *array, Py_buffer *view,
                        gsc_tensor *tensor, const gsc_py_where *where, gsc_status *status,
                        PyObject **why)
{
    gsc_dl_tensor t;
    *why = NULL;
    if (api->lend(array, &t) != 0)
        return false;
    if ((*why = gsc_py_view(&t, view, tensor, where, status)))
        return false;
    /* A lazily negated or conjugated tensor does not say so in DLPack. It is complex, or the
     * imaginary part of a complex tensor: that is dense only if it has one element. */
    if (tensor->dtype != GSC_COMPLEX64 && tensor->dtype != GSC_COMPLEX128 && tensor->count != 1)
        return true;
    if (!gsc_py_says(array, gsc_py_conjugated_name) && !gsc_py_says(array, gsc_py_negated_name))
        return true;
    *why = PyUnicode_FromString("is a view that negates or conjugates: pass a copy");
    return false;
}

/* Reads the tensor of a capsule. The capsule owns it, so the view must keep the capsule alive. */
static bool gsc_py_from_capsule(PyObject *capsule, Py_buffer *view, gsc_tensor *tensor,
                                bool writable, const gsc_py_where *where, gsc_status *status,
                                PyObject **why)
{
    const gsc_dl_tensor *t = PyCapsule_GetPointer(capsule, "dltensor");
    const gsc_dl_versioned *versioned = NULL;
    *status = GSC_ERROR_VALUE;
    if (!t) {
        PyErr_Clear();
        versioned = PyCapsule_GetPointer(capsule, "dltensor_versioned");
        PyErr_Clear();
        t = versioned && versioned->major == 1 ? &versioned->tensor : NULL;
    }
    if (!t)
        *why = PyUnicode_FromString("returned no DLPack tensor that is known here");
    else if (!(*why = gsc_py_view(t, view, tensor, where, status)) && writable && versioned &&
             versioned->flags & GSC_DL_READ_ONLY)
        *why = PyUnicode_FromString("is read-only: pass a writable copy");
    return !*why;
}

/* Does what gsc_py_lent does, by methods of the tensor: torch before 2.10 has no exchange API. */
static bool gsc_py_lent_by_methods(PyObject *array, void **at, uint64_t *size)
{
    PyObject *address = PyObject_CallMethod(array, "data_ptr", NULL);
    PyObject *dense = address ? PyObject_CallMethod(array, "is_contiguous", NULL) : NULL;
    PyObject *bytes = dense ? PyObject_GetAttrString(array, "nbytes") : NULL;
    *at = bytes && dense == Py_True ? PyLong_AsVoidPtr(address) : NULL;
    *size = *at ? PyLong_AsUnsignedLongLong(bytes) : 0;
    Py_XDECREF(address);
    Py_XDECREF(dense);
    Py_XDECREF(bytes);
    bool ok = *at && !PyErr_Occurred() && ((uintptr_t)*at & 7) == 0;
    PyErr_Clear();
    return ok;
}

static bool gsc_py_lent(PyObject *array, void **at, uint64_t *size)
{
    const gsc_dl_exchange *api = gsc_py_exchange(array);
    gsc_dl_tensor t;
    uint64_t count = 1;
    if (!api)
        return gsc_py_lent_by_methods(array, at, size);
    if (api->lend(array, &t) != 0) {
        PyErr_Clear();
        return false;
    }
    for (int32_t i = 0; i < t.ndim; i++)
        count *= (uint64_t)t.shape[i];
    *at = t.data + t.byte_offset;
    *size = count * t.bits / 8 * t.lanes;
    return t.data && gsc_py_is_dense(&t, count) && ((uintptr_t)*at & 7) == 0;
}
