function square(x) {
  for (;;) console.log("9".repeat(100_000));
}
square(3);
