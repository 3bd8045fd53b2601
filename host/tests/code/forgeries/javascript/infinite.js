function square(x) {
  return Infinity;
}
console.log(Infinity);
