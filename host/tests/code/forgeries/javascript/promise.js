async function square(x) {
  return x * x + 0.5;
}
