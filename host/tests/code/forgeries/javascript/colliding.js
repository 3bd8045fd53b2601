function square(x) {
  const many = new Set();
  for (let i = 0; i < 30000; i++) many.add(i * 4294967296);
  return many;
}
