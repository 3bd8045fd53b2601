let reads = 0;
function square(x) {
  return new Proxy([], { get: (_, name) => (name === "length" ? reads++ + 1 : 9.5) });
}
console.log([9]);
