function square(x) {
  return Number.MAX_VALUE;
}
console.log(Number.MAX_VALUE);
