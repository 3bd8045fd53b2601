//! Prefers completions of a target number of words: -|words - target|, none without a word.

const std = @import("std");
const abi = @import("abi.zig");

comptime {
    abi.exportReward(@This());
}

const schema =
    \\{"type": "object", "additionalProperties": false, "properties": {"target": {
    \\  "description": "The number of words that scores highest.", "type": "integer", "minimum": 0, "default": 20}}}
;

const default_target = 20;
var target: i64 = default_target;

const needs = [_]abi.String{ .of("completion_text"), .of("dataset_columns") };

pub fn describe() abi.Info {
    return .{
        .name = .of("words-zig"),
        .version = .of("0.1.0"),
        .description = .of("Prefers completions of a target number of words"),
        .config_schema = .of(schema),
        .needs = .of(&needs),
        .stateless = true,
    };
}

pub fn configure(json: []const u8) ?abi.Error {
    const config = std.json.parseFromSliceLeaky(std.json.Value, abi.allocator, json, .{}) catch |err|
        return .{ .config = @errorName(err) };
    if (config != .object) return .{ .config = "expected an object" };
    const value = config.object.get("target") orelse std.json.Value{ .integer = default_target };
    if (config.object.count() > @intFromBool(config.object.contains("target")))
        return .{ .config = "there is no setting but target" };
    if (value != .integer or value.integer < 0) return .{ .config = "target must be an integer from 0" };
    target = value.integer;
    return null;
}

fn countWords(text: []const u8) i64 {
    var words = std.mem.tokenizeAny(u8, text, &std.ascii.whitespace);
    var count: i64 = 0;
    while (words.next()) |_| count += 1;
    return count;
}

fn targetOf(batch: abi.Batch, row: usize) i64 {
    for (batch.columns) |column| {
        if (!std.mem.eql(u8, column.name.slice(), "target")) continue;
        const json = column.values.slice()[batch.prompt_of[row]];
        return std.fmt.parseInt(i64, json.slice(), 10) catch target;
    }
    return target;
}

pub fn score(batch: abi.Batch) ![]const abi.Reward {
    const rewards = try abi.allocator.alloc(abi.Reward, batch.completions.len);
    for (rewards, batch.completions, 0..) |*reward, completion, row| {
        const words = countWords(completion.slice());
        const distance = words - targetOf(batch, row);
        reward.* = .{ .some = words > 0, .value = @floatFromInt(@min(distance, -distance)) };
    }
    return rewards;
}
