// SPDX-License-Identifier: MIT
// A program through Zig.
const std = @import("std");
const c = @import("gradscaler"); // what `zig translate-c` makes of the header

var err: c.gsc_error = undefined;

fn must(status: c.gsc_status) void {
    if (status != c.GSC_OK) std.debug.panic("{s}", .{@as([*:0]const u8, @ptrCast(&err.message))});
}

fn growing(comptime T: type) T {
    var made = std.mem.zeroes(T);
    made.struct_size = @sizeOf(T);
    return made;
}

pub fn main() void {
    var policy = growing(c.gsc_policy);
    var loaded = growing(c.gsc_policy);
    var options = growing(c.gsc_tensor_options);
    var state: c.gsc_state = undefined;
    var again: c.gsc_state = undefined;
    var report: c.gsc_report = undefined;
    var gradients = [_]f32{ 1, 2, std.math.inf(f32) };
    var tensor = std.mem.zeroes(c.gsc_tensor);
    var saved: [c.GSC_SAVED_SIZE_MAX]u8 = undefined;
    var size: u64 = 0;
    tensor.data = &gradients;
    tensor.count = gradients.len;
    tensor.dtype = c.GSC_F32;

    must(c.gsc_policy_preset("torch", &policy, &err));
    must(c.gsc_state_init(null, &policy, &state, &err));
    options.policy = &policy;
    must(c.gsc_unscale(null, &state.factor, &tensor, &tensor, 1, &options, &report, &err));
    must(c.gsc_state_update(null, &policy, &state, &report, &state, &err));
    must(c.gsc_state_save(&policy, &state, &saved, saved.len, &size, &err));
    must(c.gsc_state_load(&saved, size, &loaded, &again, &err));

    const same = std.mem.eql(u8, std.mem.asBytes(&state), std.mem.asBytes(&again)) and
        std.mem.eql(u8, std.mem.asBytes(&policy), std.mem.asBytes(&loaded));
    if (!same or report.overflow != 1 or state.skip != 1 or gradients[1] != 2.0 / 65536.0 or state.factor.scale != 32768)
        std.debug.panic("scale {d}", .{state.factor.scale});
}
