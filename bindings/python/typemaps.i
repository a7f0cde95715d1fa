/* SPDX-License-Identifier: MIT */
/*
 * The C arguments in Python: a struct is any buffer of its size, or Memory of a context; a struct
 * with pointers is a dict of its fields; a list of tensors is a list of arrays or the result of
 * hold(); an error status is an exception; a context is a capsule that frees it.
 */
%include <stdint.i>

%typemap(in) const gsc_exec *exec (gsc_py_exec on = {GSC_EXEC_INIT, -1}) {
  if (!gsc_py_exec_of($input, &on)) SWIG_fail;
  $1 = &on.exec;
}
%typemap(in) gsc_context *context (int device) {
  if (!gsc_py_context_of($input, &$1, &device)) SWIG_fail;
}
%typemap(in, numinputs=0) gsc_context **out (gsc_context *context) "$1 = &context;"
%typemap(argout) gsc_context **out {
  Py_DECREF($result);
  const int is_cuda = strcmp("$symname", "gsc_context_create_cuda") == 0;
  $result = gsc_py_context(*$1, is_cuda ? ((const gsc_cuda_options *)(const void *)arg1)->device : -1);
}
%typemap(in, numinputs=0) void **out (void *memory) "$1 = &memory;"
%typemap(argout) void **out {
  Py_DECREF($result);
  $result = gsc_py_memory_new(swig_obj[0], *$1, arg3, device1 < 0 || arg2 == GSC_MEMORY_HOST);
}
%typemap(in, numinputs=0, noblock=1) gsc_error *err {
  gsc_error gsc_err;
  $1 = &gsc_err;
}
%typemap(out) gsc_status {
  if ($1 != GSC_OK) {
    gsc_py_raise(&gsc_err);
    SWIG_fail;
  }
  $result = SWIG_Py_Void();
}
%typemap(in) gsc_status status {
  long value = PyLong_AsLong($input);
  if (PyErr_Occurred()) SWIG_fail;
  $1 = (gsc_status)value;
  if (value != $1) {
    PyErr_SetString(PyExc_OverflowError, "status does not fit in 32 bits");
    SWIG_fail;
  }
}
/* A text; None is NULL, and the library decides whether it accepts that. */
%typemap(in) const char * {
  Py_ssize_t length = 0;
  $1 = $input == Py_None ? NULL : (char *)PyUnicode_AsUTF8AndSize($input, &length);
  if (PyErr_Occurred()) SWIG_fail;
  if ($1 && strlen($1) != (size_t)length) {
    PyErr_SetString(PyExc_ValueError, "$1_name: embedded null character");
    SWIG_fail;
  }
}
%typemap(freearg) const char * ""

%define GSC_STRUCT(type, grows)
%typemap(in) const type * (gsc_py_place place = {.at = NULL}, type copy) {
  if (!gsc_py_struct($input, &place, &copy, sizeof copy, grows, false, "$1_name")) SWIG_fail;
  $1 = place.at;
}
%typemap(in) type * (gsc_py_place place = {.at = NULL}, type copy) {
  if (!gsc_py_struct($input, &place, &copy, sizeof copy, grows, true, "$1_name")) SWIG_fail;
  $1 = place.at;
}
%typemap(freearg) const type * "gsc_py_release(&place$argnum);"
%typemap(freearg) type * {
  gsc_py_struct_back(&place$argnum, &copy$argnum, sizeof copy$argnum); /* also after an error */
  gsc_py_release(&place$argnum);
}
%enddef

/* A list of structs is one buffer. */
%define GSC_STRUCTS(type, items, count)
%typemap(in) (const type *items, uint64_t count) (gsc_py_array array = {.copy = NULL}) {
  if (!gsc_py_structs($input, &array, sizeof(type), false, "$1_name")) SWIG_fail;
  $1 = array.place.at;
  $2 = array.place.size / sizeof(type);
}
%typemap(argout) (const type *items, uint64_t count) ""
%typemap(freearg) (const type *items, uint64_t count) "gsc_py_structs_release(&array$argnum);"
%enddef
/* A list that the call fills is also one buffer, and its size is the number of structs. */
%define GSC_STRUCTS_OUT(type, items, count)
%typemap(in) (type *items, uint64_t count) (gsc_py_array array = {.copy = NULL}) {
  if (!gsc_py_structs($input, &array, sizeof(type), true, "$1_name")) SWIG_fail;
  $1 = array.place.at;
  $2 = array.place.size / sizeof(type);
}
%typemap(argout) (type *items, uint64_t count)
  "gsc_py_struct_back(&array$argnum.place, $1, array$argnum.place.size);"
%typemap(freearg) (type *items, uint64_t count) "gsc_py_structs_release(&array$argnum);"
%enddef

/* A list with a count that another list sets. */
%define GSC_STRUCTS_BESIDE(type, items)
%typemap(in) const type *items (gsc_py_array array = {.copy = NULL}) {
  if (!gsc_py_structs($input, &array, sizeof(type), false, "$1_name")) SWIG_fail;
  $1 = array.place.at;
}
%typemap(argout) const type *items ""
%typemap(freearg) const type *items "gsc_py_structs_release(&array$argnum);"
%enddef
%define GSC_NAMES(items, count)
%typemap(in) (const char *const *items, uint64_t count) (gsc_py_names strings = {.list = NULL}) {
  if (!gsc_py_names_of($input, &strings, "$1_name")) SWIG_fail;
  $1 = strings.texts;
  $2 = strings.n;
}
%typemap(freearg) (const char *const *items, uint64_t count) "gsc_py_names_release(&strings$argnum);"
%enddef
%define GSC_NAMES_BESIDE(items)
%typemap(in) const char *const *items (gsc_py_names strings = {.list = NULL}) {
  if (!gsc_py_names_of($input, &strings, "$1_name")) SWIG_fail;
  $1 = strings.texts;
}
%typemap(freearg) const char *const *items "gsc_py_names_release(&strings$argnum);"
%enddef

/* A struct with pointers; fields is the table of its fields, init its initialiser. */
%define GSC_FIELDS(type, fields, init)
%typemap(in) const type * (type filled = init, gsc_py_held_field slots[GSC_PY_PLACES], gsc_py_held_fields held = {.n = 0}) {
  held.of = slots;
  if ($input != Py_None && !gsc_py_fields($input, (char *)&filled, fields, &held, "$1_name")) SWIG_fail;
  $1 = $input != Py_None ? &filled : NULL;
}
%typemap(freearg) const type * "gsc_py_fields_release(&held$argnum);"
%enddef

/* A number behind a pointer is passed as a number and returned, several as a tuple; kind as in gsc_py_field. */
%define GSC_IN(type, name, kind)
%typemap(in) type *name (type value) {
  const gsc_py_field field = {"$1_name", 0, sizeof value, kind, false};
  if (!gsc_py_scalar($input, (char *)&value, &field)) SWIG_fail;
  $1 = &value;
}
%enddef
%define GSC_OUT(type, name, make)
%typemap(argout) type *name {
  $result = gsc_py_with($result, make(*$1));
}
%enddef
%define GSC_ONLY_OUT(type, name, make)
%typemap(in, numinputs=0) type *name (type value) "$1 = &value;"
GSC_OUT(type, name, make)
%enddef

/* A pointer to Memory, or to a buffer that the call uses until it returns. */
%typemap(in) const void * (gsc_py_place place = {.at = NULL}) {
  if (!gsc_py_place_of($input, &place, false, "$1_name")) SWIG_fail;
  $1 = place.at;
}
%typemap(in) void * (gsc_py_place place = {.at = NULL}) {
  if (!gsc_py_place_of($input, &place, true, "$1_name")) SWIG_fail;
  $1 = place.at;
}
%typemap(freearg) const void *, void * "gsc_py_release(&place$argnum);"

/* Saved bytes go in as any buffer and come out as bytes. */
%typemap(in) (const void *bytes, uint64_t size) (Py_buffer view = {0}) {
  if (PyObject_GetBuffer($input, &view, PyBUF_SIMPLE) != 0) SWIG_fail;
  $1 = view.buf;
  $2 = (uint64_t)view.len;
}
%typemap(freearg) (const void *bytes, uint64_t size) "PyBuffer_Release(&view$argnum);"
%typemap(in, numinputs=0) (void *bytes, uint64_t capacity, uint64_t *size)
    (char saved[4096], char *longer = NULL, uint64_t saved_size) {
  $1 = saved;
  $2 = sizeof saved;
  $3 = &saved_size;
}
%typemap(argout) (void *bytes, uint64_t capacity, uint64_t *size) {
  Py_DECREF($result);
  $result = PyBytes_FromStringAndSize($1, (Py_ssize_t)saved_size$argnum);
}
%typemap(freearg) (void *bytes, uint64_t capacity, uint64_t *size) "PyMem_Free(longer$argnum);"

%typemap(in) (const gsc_tensor *tensors, uint64_t n) (gsc_py_lists lists = {.writes = false}) {
  if (!gsc_py_one($input, &lists)) SWIG_fail;
  $1 = lists.in.tensors;
  $2 = (uint64_t)lists.in.n;
}
%typemap(in) (const gsc_tensor *tensors, const gsc_tensor *out, uint64_t n) (gsc_py_lists lists = {.writes = false}) {
  if (!gsc_py_pair($input, &lists)) SWIG_fail;
  $1 = lists.in.tensors;
  $2 = lists.out.tensors ? lists.out.tensors : lists.in.tensors;
  $3 = (uint64_t)lists.in.n;
}
%typemap(freearg) (const gsc_tensor *tensors, uint64_t n),
                  (const gsc_tensor *tensors, const gsc_tensor *out, uint64_t n) {
  gsc_py_lists_release(&lists$argnum);
}

/* The lock is released on a device and above 64 KiB: for less, taking it back can cost more than the work. */
%define GSC_ON_LISTS(function, on, lists, options)
%exception function {
  if (!gsc_py_ready(&on, &lists, options)) SWIG_fail;
  PyThreadState *gsc_thread = lists.in.bytes > 65536 || lists.device >= 0 ? PyEval_SaveThread() : NULL;
  $action
  if (gsc_thread) PyEval_RestoreThread(gsc_thread);
}
%enddef
/* Lists share a count; each is a gsc_py_length. */
%define GSC_SAME_COUNT(function, count, ...)
%exception function {
  const gsc_py_length lengths[] = {__VA_ARGS__};
  if (!gsc_py_same_count(lengths, sizeof lengths / sizeof *lengths, &count)) SWIG_fail;
  $action
}
%enddef
/* If the bytes do not fit on the stack, the call is made again with as many as it said. */
%define GSC_GROWS(function, count, bytes, capacity, size, longer, ...)
%exception function {
  const gsc_py_length lengths[] = {__VA_ARGS__};
  if (!gsc_py_same_count(lengths, sizeof lengths / sizeof *lengths, &count)) SWIG_fail;
  $action
  if (result == GSC_ERROR_CAPACITY) {
    if (!(longer = PyMem_Malloc(size))) {
      PyErr_NoMemory();
      SWIG_fail;
    }
    bytes = longer;
    capacity = size;
    $action
  }
}
%enddef
%define GSC_BLOCKS(function)
%exception function {
  PyThreadState *gsc_thread = PyEval_SaveThread();
  $action
  PyEval_RestoreThread(gsc_thread);
}
%enddef

%exception gsc_memory_copy {
  if (!gsc_py_fits(&place2, arg4, "to") || !gsc_py_fits(&place3, arg4, "from")) SWIG_fail;
  PyThreadState *gsc_thread = PyEval_SaveThread();
  $action
  PyEval_RestoreThread(gsc_thread);
}

%native(hold) PyObject *gsc_py_hold(PyObject *self, PyObject *args);
%native(summary) PyObject *gsc_py_summary(PyObject *self, PyObject *args);
%native(metrics) PyObject *gsc_py_metrics(PyObject *self, PyObject *args);
%native(kinds) PyObject *gsc_py_kinds(PyObject *self, PyObject *args);
%native(xla_handler) PyObject *gsc_py_xla_handler(PyObject *self, PyObject *args);
%native(with_subnormals) PyObject *gsc_py_with_subnormals(PyObject *self, PyObject *args);
%native(xla_workspace) PyObject *gsc_py_xla_workspace(PyObject *self, PyObject *args);

%init %{
  if (!gsc_py_init(m)) return -1;
%}
