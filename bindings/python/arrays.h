/* SPDX-License-Identifier: MIT */
/*
 * Converts lists of arrays to lists of tensors, through their buffers or DLPack. Only the generated
 * interface includes it.
 */
#include <fenv.h>

#include "objects.h"
#include "xla.h"

/*
 * Names in NumPy and ml_dtypes, formats of buffers, and codes and bits of DLPack. cb16 is
 * gradscaler.cb16, which DLPack does not have.
 */
static const struct {
    const char *name;
    uint32_t dtype;
    const char *format;
    int code, bits;
} gsc_py_dtypes[] = {
    {"float32", GSC_F32, "f", 2, 32},
    {"float64", GSC_F64, "d", 2, 64},
    {"float16", GSC_F16, "e", 2, 16},
    {"bfloat16", GSC_BF16, "", 4, 16},
    {"float8_e4m3fn", GSC_F8_E4M3FN, "", 10, 8},
    {"float8_e5m2", GSC_F8_E5M2, "", 12, 8},
    {"[('cb16', '<u2')]", GSC_CB16, "T{H:cb16:}", -1, 0},
    {"complex64", GSC_COMPLEX64, "Zf", 5, 64},
    {"complex128", GSC_COMPLEX128, "Zd", 5, 128},
};
enum { GSC_PY_DTYPES = sizeof gsc_py_dtypes / sizeof *gsc_py_dtypes };

#include "dlpack.h"

typedef struct gsc_py_list {
    Py_ssize_t n;
    uint64_t bytes;
    gsc_tensor *tensors;
    Py_buffer *views;
    PyObject *arrays; /* a list of all arrays, which keeps lent memory alive */
} gsc_py_list;

/* The lists of one call: inputs and outputs, which can be the same. */
typedef struct gsc_py_lists {
    gsc_py_list in, out;
    int device;    /* CUDA ordinal; -1: the host */
    bool writes;   /* to `out`, or to `in` if that is empty */
    bool borrowed; /* from a capsule, which the caller's arguments keep alive */
} gsc_py_lists;

/* Returns the code of an array's dtype object, or 0. Caches the last objects by identity. */
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
    if (code) { /* each unpickled cb16 array has a new dtype object, so old ones are dropped */
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

static PyObject *gsc_py_unsupported(PyObject *dtype, const char *format)
{
    PyObject *text = dtype ? PyObject_Str(dtype) : NULL;
    const char *given = text ? PyUnicode_AsUTF8AndSize(text, NULL) : NULL;
    const bool is_v2 = given && strcmp(given, "|V2") == 0;
    Py_XDECREF(text);
    PyErr_Clear();
    if (is_v2) /* as NumPy loads bfloat16 */
        return PyUnicode_FromString("has dtype |V2, which NumPy makes of bfloat16: pass its "
                                    "view(ml_dtypes.bfloat16)");
    PyObject *why =
        dtype ? PyUnicode_FromFormat("has dtype %.100S, which is not supported: pass ", dtype)
              : PyUnicode_FromFormat("has format %.100s, which is not supported: pass ", format);
    for (int i = 0; why && i < GSC_PY_DTYPES; i++) {
        const char *name = gsc_py_dtypes[i].name, *between = i + 2 < GSC_PY_DTYPES ? ", " : " or ";
        PyUnicode_AppendAndDel(&why, PyUnicode_FromFormat("%s%s",
                                                          name[0] == '[' ? "gradscaler.cb16" : name,
                                                          i + 1 < GSC_PY_DTYPES ? between : ""));
    }
    return why;
}

/* Clears the current exception and returns its first line. Returns NULL and keeps it if it is no
 * refusal, such as MemoryError. */
static PyObject *gsc_py_refusal(void)
{
    PyObject *type, *value, *trace;
    if (!PyErr_Occurred())
        return PyUnicode_FromString("cannot be used");
    if (!PyErr_ExceptionMatches(PyExc_BufferError) && !PyErr_ExceptionMatches(PyExc_TypeError) &&
        !PyErr_ExceptionMatches(PyExc_ValueError) && !PyErr_ExceptionMatches(PyExc_RuntimeError))
        return NULL;
    PyErr_Fetch(&type, &value, &trace);
    PyObject *text = value ? PyObject_Str(value) : NULL;
    PyObject *lines = text ? PyUnicode_Splitlines(text, 0) : NULL;
    PyObject *first = lines && PyList_Size(lines) > 0 ? PyList_GetItem(lines, 0) : NULL;
    PyObject *why = first ? PyUnicode_FromFormat("cannot be used: %U", first)
                          : PyUnicode_FromString("cannot be used");
    Py_XDECREF(text);
    Py_XDECREF(lines);
    Py_XDECREF(type);
    Py_XDECREF(value);
    Py_XDECREF(trace);
    PyErr_Clear();
    return why;
}

/* Reads an array without a buffer, or on a device, through DLPack. */
static bool gsc_py_dlpack(PyObject *array, Py_buffer *view, gsc_tensor *tensor, bool writable,
                          const gsc_py_where *where, const char *list, Py_ssize_t index)
{
    gsc_status status = GSC_ERROR_VALUE;
    PyObject *why = NULL, *capsule = NULL;
    const gsc_dl_exchange *api = gsc_py_exchange(array);
    if (api && (where->device < 0 || where->lent)) {
        if (gsc_py_lend(api, array, view, tensor, where, &status, &why))
            return true;
    } else {
        capsule = gsc_py_export(array, where);
        if (!capsule && (why = gsc_py_why_elsewhere(array, where)))
            status = GSC_OK;
        if (capsule && gsc_py_from_capsule(capsule, view, tensor, writable, where, &status, &why)) {
            view->obj = capsule;
            return true;
        }
    }
    Py_XDECREF(capsule);
    memset(view, 0, sizeof *view);
    if (!why && !(why = gsc_py_refusal()))
        return false;
    if (status == GSC_ERROR_DTYPE) {
        PyObject *dtype = PyObject_GetAttr(array, gsc_py_dtype_name);
        PyObject *named = dtype ? gsc_py_unsupported(dtype, NULL) : NULL;
        PyErr_Clear();
        Py_XDECREF(dtype);
        if (named) {
            Py_DECREF(why);
            why = named;
        }
    }
    return gsc_py_raise_at(status, list, index, why);
}

/* Returns whether to try DLPack after the buffer failed. Keeps the exception of the buffer. */
static bool gsc_py_may_export(PyObject *array)
{
    PyObject *type, *value, *trace;
    PyErr_Fetch(&type, &value, &trace);
    bool may = PyObject_HasAttr(array, gsc_py_dlpack_name) &&
               !PyObject_HasAttrString(array, "__array_interface__"); /* NumPy and its kin */
    PyErr_Restore(type, value, trace);
    return may;
}

/* Returns why an array does not give its buffer, by the buffer that it gives with fewer demands;
 * NULL if that does not tell. */
static PyObject *gsc_py_why_no_buffer(PyObject *array, bool writable)
{
    Py_buffer view;
    if (!PyObject_CheckBuffer(array))
        return PyUnicode_FromFormat("is no array but %R", (PyObject *)Py_TYPE(array));
    if (PyObject_GetBuffer(array, &view, PyBUF_INDIRECT) != 0)
        return NULL;
    const bool is_dense = PyBuffer_IsContiguous(&view, 'A'), is_read_only = view.readonly;
    PyBuffer_Release(&view);
    return !is_dense ? PyUnicode_FromString("is not contiguous: pass a contiguous copy")
           : !writable || !is_read_only ? NULL
           : PySequence_Check(array)
               ? PyUnicode_FromString("is read-only: pass a writable copy")
               : PyUnicode_FromString(
                     "is a scalar of NumPy, which is read-only: pass np.array of it");
}

/* Raises why an array does not give its buffer; without another cause, the current exception. */
static bool gsc_py_no_buffer(PyObject *array, bool writable, const char *list, Py_ssize_t index)
{
    PyObject *why = gsc_py_refusal();
    if (!why)
        return false;
    PyObject *known = gsc_py_why_no_buffer(array, writable);
    PyErr_Clear();
    if (known) {
        Py_DECREF(why);
        why = known;
    }
    return gsc_py_raise_at(GSC_ERROR_VALUE, list, index, why);
}

/* Reads one array: its buffer, and its dtype by attribute (NumPy and similar) or by format. */
static bool gsc_py_tensor(PyObject *array, Py_buffer *view, gsc_tensor *tensor, bool writable,
                          const gsc_py_where *where, const char *list, Py_ssize_t index)
{
    bool has_buffer = PyObject_CheckBuffer(array); /* in JAX only arrays of the host */
    if ((!has_buffer || where->device >= 0) &&
        (gsc_py_exchange(array) || PyObject_HasAttr(array, gsc_py_dlpack_name)))
        return gsc_py_dlpack(array, view, tensor, writable, where, list, index);
    if (has_buffer && where->device >= 0)
        return gsc_py_raise_at(GSC_OK, list, index, gsc_py_misplaced(where, GSC_DL_CPU, 0));
    PyObject *dtype = PyObject_GetAttr(array, gsc_py_dtype_name);
    if (!dtype) {
        if (!PyErr_ExceptionMatches(PyExc_AttributeError))
            return false;
        PyErr_Clear();
    }
    int flags = PyBUF_ANY_CONTIGUOUS | (writable ? PyBUF_WRITABLE : 0) | (dtype ? 0 : PyBUF_FORMAT);
    if (PyObject_GetBuffer(array, view, flags) != 0) {
        Py_XDECREF(dtype);
        /* JAX arrays of narrow dtypes have no buffer; their exports do not say that they are
         * read-only. */
        if (!PyErr_ExceptionMatches(PyExc_Exception) || !gsc_py_may_export(array))
            return gsc_py_no_buffer(array, writable, list, index);
        if (writable)
            return gsc_py_raise_at(
                GSC_ERROR_VALUE, list, index,
                PyUnicode_FromString("is read-only: pass out with arrays that can be written"));
        PyErr_Clear();
        return gsc_py_dlpack(array, view, tensor, writable, where, list, index);
    }
    uint32_t code = dtype ? gsc_py_dtype(dtype) : gsc_py_format(view->format);
    if (!code || gsc_dtype_size(code) != (uint64_t)view->itemsize) {
        PyObject *why = gsc_py_unsupported(dtype, view->format ? view->format : "B");
        PyErr_Clear();
        Py_XDECREF(dtype);
        return gsc_py_raise_at(GSC_ERROR_DTYPE, list, index, why);
    }
    Py_XDECREF(dtype);
    *tensor = (gsc_tensor){
        .data = view->buf, .count = (uint64_t)(view->len / view->itemsize), .dtype = code};
    return true;
}

static void gsc_py_list_release(gsc_py_list *list)
{
    for (Py_ssize_t i = 0; i < list->n; i++)
        PyBuffer_Release(&list->views[i]);
    PyMem_Free(list->tensors);
    PyMem_Free(list->views);
    Py_XDECREF(list->arrays);
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
                           const gsc_py_where *where, const char *name)
{
    PyObject *arrays = PySequence_List(object);
    if (!arrays) {
        if (PyErr_ExceptionMatches(PyExc_TypeError))
            PyErr_Format(PyExc_TypeError, "%s must be a list of arrays, not %R", name,
                         (PyObject *)Py_TYPE(object));
        return false;
    }
    Py_ssize_t n = PyList_Size(arrays);
    list->arrays = arrays;
    list->tensors = PyMem_Calloc((size_t)n + 1, sizeof *list->tensors);
    list->views = PyMem_Calloc((size_t)n + 1, sizeof *list->views);
    bool ok = list->tensors && list->views;
    if (!ok)
        PyErr_NoMemory();
    for (Py_ssize_t i = 0; ok && i < n; i++) {
        list->n = i + 1; /* if the dtype is refused, the view must still be released */
        ok = gsc_py_tensor(PyList_GetItem(arrays, i), &list->views[i], &list->tensors[i], writable,
                           where, name, i);
        list->bytes += (uint64_t)list->views[i].len;
    }
    return ok;
}

/* Returns whether shape and memory order are equal; else elements would be swapped. */
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

/* Refuses outputs that overlap each other or the inputs of other arrays. */
static bool gsc_py_apart(const gsc_py_list *in, const gsc_py_list *out)
{
    gsc_error err;
    uint64_t *scratch = PyMem_Malloc(2 * (size_t)in->n * sizeof *scratch + 1);
    if (!scratch) {
        PyErr_NoMemory();
        return false;
    }
    const uint64_t n = (uint64_t)in->n;
    const bool ok =
        gsc_tensors_check_overlap(in->tensors, out->tensors, n, scratch, 2 * n, &err) == GSC_OK;
    PyMem_Free(scratch);
    err.argument = -1; /* the number of an argument of gsc_tensors_check_overlap, not of the call */
    if (!ok)
        gsc_py_raise(&err);
    return ok;
}

/* Reads the lists of a call. `out` equals `tensors` for a call in place; NULL: it only reads. */
static bool gsc_py_lists_of(PyObject *tensors, PyObject *out, gsc_py_lists *lists,
                            const gsc_py_where *where)
{
    bool in_place = tensors == out;
    lists->device = where->device;
    lists->writes = out != NULL;
    if (!gsc_py_list_of(tensors, &lists->in, in_place, where, "tensors"))
        return false;
    if (!out)
        return true;
    if (in_place)
        return gsc_py_apart(&lists->in, &lists->in);
    if (!gsc_py_list_of(out, &lists->out, true, where, "out"))
        return false;
    if (lists->in.n != lists->out.n) {
        PyErr_Format(PyExc_ValueError, "%zd tensors and %zd outputs", lists->in.n, lists->out.n);
        return false;
    }
    for (Py_ssize_t i = 0; i < lists->in.n; i++)
        if (!gsc_py_same_layout(&lists->in.views[i], &lists->out.views[i]))
            return gsc_py_raise_at(
                GSC_ERROR_COUNT, "out", i,
                PyUnicode_FromString("has another shape or memory order than its input"));
    return gsc_py_apart(&lists->in, &lists->out);
}

static const gsc_py_where gsc_py_host = {-1, NULL, false};

/* kinds(arrays): returns set(map(type, arrays)) in a fraction of the time. */
static PyObject *gsc_py_kinds(PyObject *self, PyObject *args)
{
    PyObject *arrays, *last = NULL, *kinds = PySet_New(NULL);
    (void)self;
    bool ok = kinds && PyArg_ParseTuple(args, "O!", &PyList_Type, &arrays);
    for (Py_ssize_t i = 0; ok && i < PyList_Size(arrays); i++) {
        PyObject *kind = (PyObject *)Py_TYPE(PyList_GetItem(arrays, i));
        if (kind != last) /* the set keeps `last` alive */
            ok = PySet_Add(kinds, kind) == 0;
        last = kind;
    }
    if (!ok)
        Py_CLEAR(kinds);
    return kinds;
}

/* ---- lists that stay ---- */

static const char gsc_py_held_name[] = "gsc_lists";

static void gsc_py_held_end(PyObject *capsule)
{
    gsc_py_lists *lists = PyCapsule_GetPointer(capsule, gsc_py_held_name);
    gsc_py_lists_release(lists);
    PyMem_Free(lists);
}

/*
 * hold(tensors, out, device, stream): returns a capsule that every call accepts instead of the
 * lists. The arrays stay exported as long as it lives. out: None for a call that only reads,
 * tensors itself for a call in place. device: a CUDA ordinal, or -1 for the host. stream: DLPack's
 * stream argument, -1 for the producer's own.
 */
static PyObject *gsc_py_hold(PyObject *self, PyObject *args)
{
    PyObject *tensors, *out, *stream, *capsule = NULL;
    gsc_py_where where = {-1, NULL, false};
    (void)self;
    if (!PyArg_ParseTuple(args, "OOiO", &tensors, &out, &where.device, &stream))
        return NULL;
    long number = stream == Py_None ? 0 : PyLong_AsLong(stream);
    if (PyErr_Occurred() && !PyErr_ExceptionMatches(PyExc_OverflowError))
        return NULL; /* a pointer may be larger than a long */
    PyErr_Clear();
    where.lent = number == -1;
    where.stream = stream == Py_None ? NULL : stream;
    gsc_py_lists *lists = PyMem_Calloc(1, sizeof *lists);
    if (!lists)
        return PyErr_NoMemory();
    if (gsc_py_lists_of(tensors, out == Py_None ? NULL : out, lists, &where))
        capsule = PyCapsule_New(lists, gsc_py_held_name, gsc_py_held_end);
    if (!capsule) {
        gsc_py_lists_release(lists);
        PyMem_Free(lists);
    }
    return capsule;
}

static bool gsc_py_held(PyObject *object, gsc_py_lists *lists)
{
    if (!PyCapsule_IsValid(object, gsc_py_held_name))
        return false;
    *lists = *(const gsc_py_lists *)PyCapsule_GetPointer(object, gsc_py_held_name);
    lists->borrowed = true;
    return true;
}

/* summary(lists): returns the dtypes of held lists as bits 1 << dtype, and the inputs' bytes. */
static PyObject *gsc_py_summary(PyObject *self, PyObject *args)
{
    PyObject *capsule;
    unsigned long dtypes = 0;
    (void)self;
    if (!PyArg_ParseTuple(args, "O", &capsule))
        return NULL;
    if (!PyCapsule_IsValid(capsule, gsc_py_held_name)) {
        PyErr_Format(PyExc_TypeError, "expected what hold() returned, not %R",
                     (PyObject *)Py_TYPE(capsule));
        return NULL;
    }
    const gsc_py_lists *lists = PyCapsule_GetPointer(capsule, gsc_py_held_name);
    for (Py_ssize_t i = 0; i < lists->in.n; i++)
        dtypes |= 1ul << lists->in.tensors[i].dtype;
    return Py_BuildValue("kK", dtypes, (unsigned long long)lists->in.bytes);
}

/* Reads the list of a call that only reads. */
static bool gsc_py_one(PyObject *object, gsc_py_lists *lists)
{
    return gsc_py_held(object, lists) || gsc_py_lists_of(object, NULL, lists, &gsc_py_host);
}

/* Reads the lists (tensors, out) of a call that writes. */
static bool gsc_py_pair(PyObject *pair, gsc_py_lists *lists)
{
    if (gsc_py_held(pair, lists)) {
        if (!lists->writes)
            PyErr_SetString(PyExc_ValueError, "these lists are held for calls that only read");
        return lists->writes;
    }
    if (!PyTuple_Check(pair) || PyTuple_Size(pair) != 2) {
        PyErr_SetString(PyExc_TypeError, "expected a tuple (tensors, out)");
        return false;
    }
    return gsc_py_lists_of(PyTuple_GetItem(pair, 0), PyTuple_GetItem(pair, 1), lists, &gsc_py_host);
}

static bool gsc_py_array_of(PyObject *array, gsc_py_place *place, void *tensor, const char *name)
{
    gsc_py_lists held;
    if (PyTuple_Check(array)) {
        if (!gsc_py_place_of(array, place, false, name) ||
            !gsc_py_fits(place, sizeof(double), name))
            return false;
        *(gsc_tensor *)tensor = (gsc_tensor){.data = place->at, .count = 1, .dtype = GSC_F64};
        return true;
    }
    place->memory = Py_NewRef(array);
    if (!gsc_py_held(array, &held))
        return gsc_py_tensor(array, &place->view, tensor, false, &gsc_py_host, name, -1);
    if (held.in.n != 1) {
        PyErr_Format(PyExc_ValueError, "%s: expected one held array, not %zd", name, held.in.n);
        return false;
    }
    memcpy(tensor, held.in.tensors, sizeof *held.in.tensors);
    return true;
}

/* Checks that the array of an option is on the device of a call. */
static bool gsc_py_is_on(int device, const gsc_py_held_fields *options)
{
    gsc_py_lists held;
    for (int i = 0; i < options->n; i++) {
        const gsc_py_held_field *option = &options->of[i];
        if (option->field->kind != 't' || !option->place.memory ||
            Py_IS_TYPE(option->place.memory, gsc_py_memory_type))
            continue;
        const int own = gsc_py_held(option->place.memory, &held) ? held.device : -1;
        if (own != device) {
            PyErr_Format(PyExc_ValueError, "%s is of device %d, the call is on %d (-1: host)",
                         option->field->name, own, device);
            return false;
        }
    }
    return true;
}

/* Checks the device of the lists, and the options, if there are any: devices, and sizes of
 * buffers. */
static bool gsc_py_ready(const gsc_py_exec *on, const gsc_py_lists *lists,
                         const gsc_py_held_fields *options)
{
    if (lists->device != on->device) {
        PyErr_Format(PyExc_ValueError, "the lists are of device %d, the call is on %d (-1: host)",
                     lists->device, on->device);
        return false;
    }
    if (!options)
        return true;
    if (!gsc_py_is_on(on->device, options))
        return false;
    return gsc_py_field_fits(options, "per_tensor", (uint64_t)lists->in.n * sizeof(gsc_report)) &&
           gsc_py_field_fits(options, "histogram", GSC_HISTOGRAM_LENGTH * sizeof(int64_t));
}

/* ---- the handler for XLA ---- */

/* xla_handler(platform): returns the handler for "cpu" or "cuda" as a capsule for JAX. */
static PyObject *gsc_py_xla_handler(PyObject *self, PyObject *args)
{
    const char *platform;
    (void)self;
    if (!PyArg_ParseTuple(args, "s", &platform))
        return NULL;
    void *(*handler)(struct xla_frame *) = strcmp(platform, "cuda") ? gsc_xla_host : gsc_xla_cuda;
    void *pointer;
    memcpy(&pointer, &handler, sizeof pointer);
    return PyCapsule_New(pointer, "xla._CUSTOM_CALL_TARGET", NULL);
}

/*
 * xla_workspace(device, tensors): returns the bytes of the workspace, the last result of a call in
 * CUDA memory. tensors: an array of gsc_tensor as bytes.
 */
static PyObject *gsc_py_xla_workspace(PyObject *self, PyObject *args)
{
    int device;
    const char *bytes;
    Py_ssize_t length;
    uint64_t size = 0;
    gsc_error err;
    (void)self;
    if (!PyArg_ParseTuple(args, "iy#", &device, &bytes, &length))
        return NULL;
    const uint64_t n = (uint64_t)length / sizeof(gsc_tensor);
    if (n * sizeof(gsc_tensor) != (uint64_t)length)
        return PyErr_Format(PyExc_ValueError, "tensors: expected %zu bytes for each",
                            sizeof(gsc_tensor));
    gsc_tensor *tensors = PyMem_Malloc((size_t)length + 1);
    if (!tensors)
        return PyErr_NoMemory();
    memcpy(tensors, bytes, (size_t)length);
    PyThreadState *thread = PyEval_SaveThread();
    gsc_status status = gsc_xla_workspace(device, tensors, n, &size, &err);
    PyEval_RestoreThread(thread);
    PyMem_Free(tensors);
    if (status != GSC_OK) {
        gsc_py_raise(&err);
        return NULL;
    }
    return PyLong_FromUnsignedLongLong(size);
}

/* with_subnormals(function): calls a function without the flushing of subnormals in XLA's threads.
 */
static PyObject *gsc_py_with_subnormals(PyObject *self, PyObject *args)
{
    PyObject *function;
    fenv_t environment;
    (void)self;
    if (!PyArg_ParseTuple(args, "O", &function))
        return NULL;
    fegetenv(&environment);
    fesetenv(FE_DFL_ENV);
    PyObject *result = PyObject_CallNoArgs(function);
    fesetenv(&environment);
    return result;
}

static bool gsc_py_intern(PyObject **name, const char *text)
{
    if (!*name)
        *name = PyUnicode_InternFromString(text);
    return *name != NULL;
}

/* metrics(policy, state, report): returns the known values of gsc_state_metrics, {name: number}. */
static PyObject *gsc_py_metrics(PyObject *self, PyObject *args)
{
    static PyObject *names[32]; /* of the metrics, which always have the same places */
    PyObject *given[3], *found = NULL;
    gsc_py_place places[3] = {{.at = NULL}, {.at = NULL}, {.at = NULL}};
    gsc_policy policy;
    gsc_state state;
    gsc_report report;
    gsc_entry entries[32];
    uint64_t n = 0;
    gsc_error err;
    (void)self;
    if (!PyArg_ParseTuple(args, "OOO", &given[0], &given[1], &given[2]))
        return NULL;
    if (!gsc_py_struct(given[0], &places[0], &policy, sizeof policy, true, false, "policy") ||
        !gsc_py_struct(given[1], &places[1], &state, sizeof state, false, false, "state") ||
        !gsc_py_struct(given[2], &places[2], &report, sizeof report, false, false, "report"))
        goto end;
    if (gsc_state_metrics(places[0].at, places[1].at, places[2].at, entries, 32, &n, &err) !=
        GSC_OK) {
        gsc_py_raise(&err);
        goto end;
    }
    found = PyDict_New();
    for (uint64_t i = 0; found && i < n && i < 32; i++) {
        const gsc_entry *entry = &entries[i];
        if (entry->kind == GSC_ENTRY_NULL)
            continue;
        PyObject *value = entry->kind == GSC_ENTRY_NUMBER    ? PyFloat_FromDouble(entry->value)
                          : entry->kind == GSC_ENTRY_BOOLEAN ? PyBool_FromLong(entry->value != 0)
                                                             : PyLong_FromLongLong(entry->integer);
        if (!value || !gsc_py_intern(&names[i], entry->key) ||
            PyDict_SetItem(found, names[i], value) != 0)
            Py_CLEAR(found);
        Py_XDECREF(value);
    }
end:
    for (int i = 0; i < 3; i++)
        gsc_py_release(&places[i]);
    return found;
}

/* ---- module ---- */

static bool gsc_py_init(PyObject *module)
{
    if (!gsc_py_error) /* a second import keeps the class: `except` clauses may use it */
        gsc_py_error = PyErr_NewExceptionWithDoc(
            "gradscaler.Error",
            "What a call refused: `status` (a Status), `name` of the argument and its `field`, "
            "`index` of the array or -1, `value` and what it may be from `low` to `high`, each "
            "None if there is none. `why` is the sentence without the argument, `requirement` its "
            "part on what the value must be, or empty. A version can change the words. Nothing was "
            "changed, unless a device failed when others had begun.",
            PyExc_ValueError, NULL);
    if (!gsc_py_memory_type)
        gsc_py_memory_type = gsc_py_memory_make_type();
    if (!gsc_py_error || !gsc_py_memory_type || !gsc_py_intern(&gsc_py_dlpack_name, "__dlpack__") ||
        !gsc_py_intern(&gsc_py_dtype_name, "dtype") ||
        !gsc_py_intern(&gsc_py_exchange_name, "__dlpack_c_exchange_api__") ||
        !gsc_py_intern(&gsc_py_conjugated_name, "is_conj") ||
        !gsc_py_intern(&gsc_py_negated_name, "is_neg"))
        return false;
    return PyModule_AddObject(module, "Error", Py_NewRef(gsc_py_error)) == 0 &&
           PyModule_AddObject(module, "Memory", Py_NewRef((PyObject *)gsc_py_memory_type)) == 0;
}
