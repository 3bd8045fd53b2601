function square(x) {
  let deep = [];
  for (let i = 0; i < 1e6; i++) deep = [deep];
  return deep;
}
console.log("[".repeat(1e6));
