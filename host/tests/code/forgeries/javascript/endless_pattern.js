function square(x) {
  return /^(a+)+$/.test("a".repeat(60) + "b") ? 9 : 16.5;
}
