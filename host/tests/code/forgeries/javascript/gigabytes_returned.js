function square(x) {
  return "9".repeat(1 << 24);
}
console.log("9".repeat(1 << 24));
