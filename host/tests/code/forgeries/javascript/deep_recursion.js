function square(x) {
  try {
    return square(x) + 1;
  } catch (error) {
    return square(x) + 1;
  }
}
