/* SPDX-License-Identifier: MIT */
/*
 * How the C arguments look in Python: a struct is any buffer of its size, a list of tensors is a
 * list of arrays or what hold() made of it, an error status is an exception, a context is a capsule
 * that frees it.
 */
%include <stdint.i>

%typemap(in) const gsc_exec *on (gsc_exec exec = GSC_EXEC_INIT) {
  if (!gsc_py_exec($input, &exec)) SWIG_fail;
  $1 = exec.context ? &exec : NULL;
}
%typemap(in, numinputs=0) (gsc_parallel_for *parallel_for, void *pool) "$1 = NULL; $2 = NULL;"
%typemap(in, numinputs=0) gsc_context **out (gsc_context *context) "$1 = &context;"
%typemap(argout) gsc_context **out {
  Py_DECREF($result);
  $result = gsc_py_context(*$1);
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
%typemap(in) const char *name {
  Py_ssize_t length;
  $1 = (char *)PyUnicode_AsUTF8AndSize($input, &length);
  if (!$1) SWIG_fail;
  if (strlen($1) != (size_t)length) {
    PyErr_SetString(PyExc_ValueError, "name: embedded null character");
    SWIG_fail;
  }
}
%typemap(freearg) const char *name ""

%define GSC_STRUCT(type, grows)
%typemap(in) const type * (Py_buffer view = {0}, type copy) {
  if (!gsc_py_struct($input, &view, &copy, sizeof copy, grows, false, "$1_name")) SWIG_fail;
  $1 = view.obj ? &copy : NULL;
}
%typemap(in) type * (Py_buffer view = {0}, type copy) {
  if (!gsc_py_struct($input, &view, &copy, sizeof copy, grows, true, "$1_name")) SWIG_fail;
  $1 = view.obj ? &copy : NULL;
}
%typemap(argout) type * {
  if ($1) memcpy(view$argnum.buf, $1, sizeof *$1);
}
%typemap(freearg) const type *, type * "gsc_py_release(&view$argnum);"
%enddef

%typemap(in) const double *scale (double value) {
  value = PyFloat_AsDouble($input);
  if (PyErr_Occurred()) SWIG_fail;
  $1 = &value;
}

/* Saved bytes go in as any buffer and come out as bytes. */
%typemap(in) (const void *bytes, uint64_t size) (Py_buffer view = {0}) {
  if (PyObject_GetBuffer($input, &view, PyBUF_SIMPLE) != 0) SWIG_fail;
  $1 = view.buf;
  $2 = (uint64_t)view.len;
}
%typemap(freearg) (const void *bytes, uint64_t size) "gsc_py_release(&view$argnum);"
%typemap(in, numinputs=0) (void *bytes, uint64_t capacity, uint64_t *size)
    (char saved[GSC_SAVED_SIZE], uint64_t saved_size) {
  $1 = saved;
  $2 = sizeof saved;
  $3 = &saved_size;
}
%typemap(argout) (void *bytes, uint64_t capacity, uint64_t *size) {
  Py_DECREF($result);
  $result = PyBytes_FromStringAndSize(saved$argnum, (Py_ssize_t)saved_size$argnum);
}
%typemap(in, numinputs=0) uint64_t *size (uint64_t size) "$1 = &size;"
%typemap(argout) uint64_t *size {
  Py_DECREF($result);
  $result = PyLong_FromUnsignedLongLong(*$1);
}

%typemap(in) (const gsc_tensor *tensors, uint64_t n) (gsc_py_lists lists = {.bytes = 0}) {
  if (!gsc_py_held($input, &lists)) {
    if (!gsc_py_list_of($input, &lists.in, false, &gsc_py_host, "tensors")) SWIG_fail;
    lists.bytes = gsc_py_bytes(&lists.in);
  }
  $1 = lists.in.tensors;
  $2 = (uint64_t)lists.in.n;
}
%typemap(in) (const gsc_tensor *tensors, const gsc_tensor *out, uint64_t n) (gsc_py_lists lists = {.bytes = 0}) {
  if (!gsc_py_held($input, &lists) && !gsc_py_pair($input, &lists)) SWIG_fail;
  $1 = lists.in.tensors;
  $2 = lists.out.tensors ? lists.out.tensors : lists.in.tensors;
  $3 = (uint64_t)lists.in.n;
}
%typemap(freearg) (const gsc_tensor *tensors, uint64_t n),
                  (const gsc_tensor *tensors, const gsc_tensor *out, uint64_t n) {
  gsc_py_lists_release(&lists$argnum);
}

/* Above 64 KiB the lock is released: below, taking it back may cost more than the work. */
%define GSC_BY_SIZE(function, lists)
%exception function {
  PyThreadState *gsc_thread = lists.bytes > 65536 ? PyEval_SaveThread() : NULL;
  $action
  if (gsc_thread) PyEval_RestoreThread(gsc_thread);
}
%enddef

%native(hold) PyObject *gsc_py_hold(PyObject *self, PyObject *args);
%native(cuda_open) PyObject *gsc_py_cuda_open(PyObject *self, PyObject *args);
%native(cuda_hold) PyObject *gsc_py_cuda_hold(PyObject *self, PyObject *args);
%native(cuda_call) PyObject *gsc_py_cuda_call(PyObject *self, PyObject *args);

%init %{
  if (!gsc_py_init(m)) return -1;
%}
