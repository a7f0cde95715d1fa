-- SPDX-License-Identifier: MIT
-- A program through LuaJIT, which reads include/gradscaler.cdef: client.lua CDEF LIBRARY
local ffi = require "ffi"
ffi.cdef(io.open(arg[1]):read "*a")
local lib = ffi.load(arg[2])
local err = ffi.new "gsc_error"

local function must(status)
    if status ~= lib.GSC_OK then error(ffi.string(err.message)) end
end

local function growing(name)
    local made = ffi.new(name)
    made.struct_size = ffi.sizeof(name)
    return made
end

local policy, options, loaded = growing "gsc_policy", growing "gsc_tensor_options", growing "gsc_policy"
local state, again, report = ffi.new "gsc_state", ffi.new "gsc_state", ffi.new "gsc_report"
local gradients = ffi.new("float[3]", 1, 2, math.huge)
local tensor = ffi.new("gsc_tensor", { data = gradients, count = 3, dtype = lib.GSC_F32 })
local saved, size = ffi.new("char[?]", lib.GSC_SAVED_SIZE_MAX), ffi.new "uint64_t[1]"
local threads, context, on = growing "gsc_cpu_options", ffi.new "gsc_context *[1]", growing "gsc_exec"
threads.threads = 2

must(lib.gsc_context_create_cpu(threads, context, err))
on.context = context[0]
must(lib.gsc_policy_preset("torch", policy, err))
must(lib.gsc_state_init(nil, policy, state, err))
options.policy = policy
must(lib.gsc_unscale(on, state.factor, tensor, tensor, 1, options, report, err))
must(lib.gsc_state_update(nil, policy, state, report, state, err))
must(lib.gsc_state_save(policy, state, saved, lib.GSC_SAVED_SIZE_MAX, size, err))
must(lib.gsc_state_load(saved, size[0], loaded, again, err))
lib.gsc_context_destroy(context[0])

local function same(a, b)
    return ffi.string(a, ffi.sizeof(a)) == ffi.string(b, ffi.sizeof(b))
end

assert(lib.gsc_status_string(lib.GSC_ERROR_NULL) ~= nil and lib.GSC_ERROR_NULL == -1)
assert(report.overflow == 1 and report.inf_count == 1 and state.skip == 1)
assert(gradients[1] == 2 / 65536 and state.factor.scale == 32768)
assert(same(state, again) and same(policy, loaded))
print(ffi.string(lib.gsc_version_string()), state.factor.scale)
