function square(x) {
  try {
    throw 1;
  } catch (error) {
    return undefined;
  } finally {
    return null;
  }
}
