function square(x) {
  return x % 2 ? new Set([x * x]) : new Map([[0, x * x]]);
}
console.log(new Set([9]));
