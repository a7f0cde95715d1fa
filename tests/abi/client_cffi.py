# SPDX-License-Identifier: MIT
"""A program through cffi, which reads include/gradscaler.cdef: client_cffi.py CDEF LIBRARY"""

import sys

import cffi

ffi = cffi.FFI()
with open(sys.argv[1]) as file:
    ffi.cdef(file.read())
lib = ffi.dlopen(sys.argv[2])
error = ffi.new("gsc_error *")


def must(status):
    if status != lib.GSC_OK:
        sys.exit(ffi.string(error.message).decode())


def growing(name):
    return ffi.new(f"{name} *", {"struct_size": ffi.sizeof(name)})


policy, options, loaded = growing("gsc_policy"), growing("gsc_tensor_options"), growing("gsc_policy")
state, again, report = ffi.new("gsc_state *"), ffi.new("gsc_state *"), ffi.new("gsc_report *")
gradients = ffi.new("float[]", [1, 2, float("inf")])
tensor = ffi.new("gsc_tensor *", {"data": gradients, "count": 3, "dtype": lib.GSC_F32})
saved, size = ffi.new("char[]", lib.GSC_SAVED_SIZE_MAX), ffi.new("uint64_t *")
threads, context = growing("gsc_cpu_options"), ffi.new("gsc_context **")
threads.threads = 2
on = growing("gsc_exec")

must(lib.gsc_context_create_cpu(threads, context, error))
on.context = context[0]
must(lib.gsc_policy_preset(b"torch", policy, error))
must(lib.gsc_state_init(ffi.NULL, policy, state, error))
options.policy = policy
factor = ffi.addressof(state, "factor")
must(lib.gsc_unscale(on, factor, tensor, tensor, 1, options, report, error))
must(lib.gsc_state_update(ffi.NULL, policy, state, report, state, error))
must(lib.gsc_state_save(policy, state, saved, lib.GSC_SAVED_SIZE_MAX, size, error))
must(lib.gsc_state_load(saved, size[0], loaded, again, error))
lib.gsc_context_destroy(context[0])

assert lib.gsc_status_string(lib.GSC_ERROR_NULL) != ffi.NULL and lib.GSC_ERROR_NULL == -1
assert report.overflow == 1 and report.inf_count == 1 and state.skip == 1
assert gradients[1] == 2 / 65536 and state.factor.scale == again.factor.scale == 32768
assert ffi.buffer(state)[:] == ffi.buffer(again)[:] and ffi.buffer(policy)[:] == ffi.buffer(loaded)[:]
print(ffi.string(lib.gsc_version_string()).decode(), state.factor.scale)
