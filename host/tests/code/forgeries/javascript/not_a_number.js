function square(x) {
  return x % 2 ? NaN : -Infinity;
}
console.log(NaN);
