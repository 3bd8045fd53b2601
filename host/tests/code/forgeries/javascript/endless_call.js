function square(x) {
  for (;;) {
    try {
      for (;;);
    } catch (error) {}
  }
}
