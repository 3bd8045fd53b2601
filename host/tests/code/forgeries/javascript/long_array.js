function square(x) {
  return new Array(4294967295);
}
