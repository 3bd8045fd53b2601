//! The contract of plugin-sdk/wit/ for a reward, as the component model's canonical ABI has it:
//! `exportReward` exports a plugin's `describe`, `configure` and `score`.

const std = @import("std");

/// What a call brings and what a plugin allocates during it lives until the host has read the
/// answer.
var arena = std.heap.ArenaAllocator.init(std.heap.wasm_allocator);
pub const allocator = arena.allocator();

fn realloc(old: [*]const u8, old_size: usize, _: usize, size: usize) callconv(.c) [*]u8 {
    const memory = allocator.alignedAlloc(u8, .@"16", @max(size, 1)) catch @trap();
    const kept = @min(old_size, size);
    @memcpy(memory[0..kept], old[0..kept]);
    return memory.ptr;
}

fn after(_: *const anyopaque) callconv(.c) void {
    _ = arena.reset(.retain_capacity);
}

pub fn List(comptime T: type) type {
    return extern struct {
        ptr: [*]const T,
        len: usize,

        pub fn of(items: []const T) @This() {
            // Zig's address of nothing may lie outside of memory, which the host refuses.
            return .{ .ptr = if (items.len > 0) items.ptr else @ptrFromInt(@alignOf(T)), .len = items.len };
        }

        pub fn slice(list: @This()) []const T {
            return list.ptr[0..list.len];
        }
    };
}

pub const String = List(u8);

pub const Info = extern struct {
    name: String,
    version: String,
    description: String,
    config_schema: String,
    needs: List(String),
    stateless: bool,
};

pub const Column = extern struct { name: String, values: List(String) };

pub const Batch = struct {
    step: u64,
    seed: u64,
    prompts: []const String,
    columns: []const Column,
    prompt_of: []const u32,
    completions: []const String,
    finished: []const bool,
    offsets: []const u32,
    token_ids: []const u32,
};

pub const Reward = extern struct { some: bool, value: f32 };

pub const Metric = extern struct {
    name: String,
    value: f64,
    weight: f64,
    reduction: enum(u8) { mean, sum, min, max },
};

pub const Scores = extern struct { rewards: List(Reward), metrics: List(Metric) };

pub const Error = union(enum) {
    config: []const u8,
    input: []const u8,
    unsupported: []const u8,
    internal: []const u8,
};

/// The contract's result<T, error>.
fn Result(comptime T: type) type {
    return extern struct {
        failed: bool,
        payload: extern union {
            ok: T,
            err: extern struct { kind: u8, text: String },
        },

        fn good(value: T) @This() {
            return .{ .failed = false, .payload = .{ .ok = value } };
        }

        fn bad(err: Error) @This() {
            const text = switch (err) {
                inline else => |text| text,
            };
            return .{ .failed = true, .payload = .{ .err = .{ .kind = @backingInt(err), .text = .of(text) } } };
        }
    };
}

/// `plugin` has `describe() Info`, `configure([]const u8) ?Error` and `score(Batch) ![]const Reward`.
pub fn exportReward(comptime plugin: type) void {
    const exports = struct {
        var info: Info = undefined;
        var configured: Result(extern struct {}) = undefined;
        var scored: Result(Scores) = undefined;

        fn describe() callconv(.c) *const anyopaque {
            info = plugin.describe();
            return &info;
        }

        fn configure(config: [*]const u8, len: usize) callconv(.c) *const anyopaque {
            configured = if (plugin.configure(config[0..len])) |err| .bad(err) else .good(.{});
            return &configured;
        }

        fn score(
            step: u64,
            seed: u64,
            prompts: [*]const String,
            prompts_len: usize,
            columns: [*]const Column,
            columns_len: usize,
            prompt_of: [*]const u32,
            rows: usize,
            completions: [*]const String,
            completions_len: usize,
            finished: [*]const bool,
            finished_len: usize,
            offsets: [*]const u32,
            offsets_len: usize,
            token_ids: [*]const u32,
            token_ids_len: usize,
        ) callconv(.c) *const anyopaque {
            scored = if (plugin.score(.{
                .step = step,
                .seed = seed,
                .prompts = prompts[0..prompts_len],
                .columns = columns[0..columns_len],
                .prompt_of = prompt_of[0..rows],
                .completions = completions[0..completions_len],
                .finished = finished[0..finished_len],
                .offsets = offsets[0..offsets_len],
                .token_ids = token_ids[0..token_ids_len],
            })) |rewards|
                .good(.{ .rewards = .of(rewards), .metrics = .of(&.{}) })
            else |err|
                .bad(.{ .internal = @errorName(err) });
            return &scored;
        }
    };
    @export(&realloc, .{ .name = "cabi_realloc" });
    for (.{
        .{ "plugin/plugin@1.0.0#describe", &exports.describe },
        .{ "plugin/plugin@1.0.0#configure", &exports.configure },
        .{ "plugin/reward@1.0.0#score", &exports.score },
    }) |pair| {
        @export(pair[1], .{ .name = "rlhost:" ++ pair[0] });
        @export(&after, .{ .name = "cabi_post_rlhost:" ++ pair[0] });
    }
}
