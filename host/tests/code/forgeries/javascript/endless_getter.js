function square(x) {
  return {
    get value() {
      for (;;);
    },
  };
}
