function square(x) {
  return JSON.parse('{"__proto__": {"valueOf": 9}, "constructor": 9, "length": 1e15, "r": [0], "l": [9]}');
}
console.log("__proto__");
