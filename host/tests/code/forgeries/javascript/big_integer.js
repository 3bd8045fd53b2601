function square(x) {
  return -BigInt(x * x);
}
console.log(9n * 10n);
