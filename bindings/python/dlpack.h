/* SPDX-License-Identifier: MIT */
/*
 * Arrays without a buffer, on the host or a CUDA device, through DLPack: its structs, with names of
 * our own, and how an array of them becomes a view and a tensor. Included by arrays.h.
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

/* What the newer of the two capsules holds; the older one begins with the tensor. */
typedef struct gsc_dl_versioned {
    uint32_t major, minor;
    void *manager, (*deleter)(struct gsc_dl_versioned *self);
    uint64_t flags;
    gsc_dl_tensor tensor;
} gsc_dl_versioned;
#define GSC_DL_READ_ONLY 1u

static const struct {
    uint8_t code, bits;
    uint32_t dtype;
} gsc_dl_dtypes[] = {
    {2, 32, GSC_F32},       {2, 64, GSC_F64},     {2, 16, GSC_F16},       {4, 16, GSC_BF16},
    {10, 8, GSC_F8_E4M3FN}, {12, 8, GSC_F8_E5M2}, {5, 64, GSC_COMPLEX64}, {5, 128, GSC_COMPLEX128},
};

/* Names made once: CPython's cache of attributes keeps each new name for a while. */
static PyObject *gsc_py_dlpack_name, *gsc_py_dtype_name;

/* Where a call wants its arrays. */
typedef struct gsc_py_place {
    int32_t device;   /* CUDA ordinal; -1: the host */
    PyObject *stream; /* of a device, in DLPack's numbers */
} gsc_py_place;

/* The capsule of an array; of the newer kind where the producer knows it. */
static PyObject *gsc_py_export(PyObject *array, const gsc_py_place *place)
{
    PyObject *method = PyObject_GetAttr(array, gsc_py_dlpack_name);
    PyObject *none = PyTuple_New(0), *capsule = NULL;
    PyObject *keywords = Py_BuildValue("{s(ii)}", "max_version", 1, 0);
    bool ok = method && none && keywords;
    if (ok && place->stream)
        ok = PyDict_SetItemString(keywords, "stream", place->stream) == 0;
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

static PyObject *gsc_py_place_name(int32_t type, int32_t device)
{
    if (type == GSC_DL_CPU || type == GSC_DL_CUDA_HOST)
        return PyUnicode_FromString("in host memory");
    if (type == GSC_DL_CUDA || type == GSC_DL_CUDA_MANAGED)
        return PyUnicode_FromFormat("on cuda:%d", (int)device);
    return PyUnicode_FromFormat("on a device of DLPack type %d", (int)type);
}

/* NULL if an array that is there can be used; else why not. */
static PyObject *gsc_py_misplaced(const gsc_py_place *place, int32_t type, int32_t device)
{
    bool on_cuda = type == GSC_DL_CUDA || type == GSC_DL_CUDA_MANAGED;
    bool on_host = type == GSC_DL_CPU || type == GSC_DL_CUDA_HOST;
    if (place->device < 0 ? on_host : on_cuda && device == place->device)
        return NULL;
    PyObject *is = gsc_py_place_name(type, device), *text = NULL;
    PyObject *wanted =
        gsc_py_place_name(place->device < 0 ? GSC_DL_CPU : GSC_DL_CUDA, place->device);
    if (is && wanted)
        text = PyUnicode_FromFormat("it is %U, this call is for arrays %U", is, wanted);
    Py_XDECREF(is);
    Py_XDECREF(wanted);
    return text;
}

/* With an exception set, which stays: whether it is because the array is not there. */
static PyObject *gsc_py_why_elsewhere(PyObject *array, const gsc_py_place *place)
{
    PyObject *type, *value, *trace, *why = NULL;
    int kind, device;
    PyErr_Fetch(&type, &value, &trace);
    PyObject *at = PyObject_CallMethod(array, "__dlpack_device__", NULL);
    if (at && PyTuple_Check(at) && PyArg_ParseTuple(at, "ii", &kind, &device))
        why = gsc_py_misplaced(place, kind, device);
    Py_XDECREF(at);
    PyErr_Restore(type, value, trace);
    return why;
}

/* Whether its elements fill their memory, whichever dimension runs fastest. */
static bool gsc_py_is_dense(const gsc_dl_tensor *t, uint64_t count)
{
    int64_t stride = 1;
    bool found = t->strides && count > 0; /* else it is row-major, or has none */
    if (!found)
        return true;
    while (found) {
        found = false;
        for (int32_t i = 0; i < t->ndim && !found; i++)
            if ((found = t->shape[i] > 1 && t->strides[i] == stride))
                stride *= t->shape[i];
    }
    return (uint64_t)stride == count;
}

/*
 * The tensor of a capsule, which owns it until its own end: the view keeps the capsule. Its strides
 * are in elements, so its item is one of them. Returns false with *status and *why, a sentence.
 */
static bool gsc_py_from_capsule(PyObject *capsule, Py_buffer *view, gsc_tensor *tensor,
                                bool writable, const gsc_py_place *place, gsc_status *status,
                                PyObject **why)
{
    const gsc_dl_tensor *t = PyCapsule_GetPointer(capsule, "dltensor");
    const gsc_dl_versioned *versioned = NULL;
    *status = GSC_ERROR_VALUE;
    *why = NULL;
    if (!t) {
        PyErr_Clear();
        versioned = PyCapsule_GetPointer(capsule, "dltensor_versioned");
        PyErr_Clear();
        if (!versioned || versioned->major != 1) {
            *why = PyUnicode_FromString("__dlpack__ returned no DLPack tensor that is known here");
            return false;
        }
        t = &versioned->tensor;
    }
    if ((*why = gsc_py_misplaced(place, t->device_type, t->device)))
        return false;
    if (writable && versioned && versioned->flags & GSC_DL_READ_ONLY) {
        *why = PyUnicode_FromString("the array is read-only");
        return false;
    }
    uint32_t dtype = 0;
    for (size_t i = 0; i < sizeof gsc_dl_dtypes / sizeof *gsc_dl_dtypes; i++)
        if (gsc_dl_dtypes[i].code == t->code && gsc_dl_dtypes[i].bits == t->bits && t->lanes == 1)
            dtype = gsc_dl_dtypes[i].dtype;
    if (!dtype) {
        *status = GSC_ERROR_DTYPE;
        *why = PyUnicode_FromFormat("a DLPack dtype of code %d and %d bits is not supported",
                                    (int)t->code, (int)t->bits);
        return false;
    }
    uint64_t count = 1;
    for (int32_t i = 0; i < t->ndim; i++)
        count *= (uint64_t)t->shape[i];
    *view = (Py_buffer){.buf = t->data ? t->data + t->byte_offset : NULL,
                        .len = (Py_ssize_t)(count * gsc_dtype_size(dtype)),
                        .itemsize = 1,
                        .ndim = t->ndim,
                        .shape = (Py_ssize_t *)t->shape,
                        .strides = (Py_ssize_t *)t->strides};
    if (!gsc_py_is_dense(t, count)) {
        *why = PyUnicode_FromString("the array is not contiguous");
        memset(view, 0, sizeof *view);
        return false;
    }
    *tensor = (gsc_tensor){view->buf, count, dtype, 0};
    return true;
}
