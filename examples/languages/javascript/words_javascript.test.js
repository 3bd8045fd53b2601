import assert from "node:assert";
import test from "node:test";
import { words_javascript } from "./words_javascript.js";

test("the target scores highest", () => {
  assert.equal(words_javascript("one two three", { target: 3 }), 0);
  assert.equal(words_javascript("one two", { target: 3 }), -1);
});

test("no word has no score", () => {
  assert.equal(words_javascript(" \n", {}), null);
});
