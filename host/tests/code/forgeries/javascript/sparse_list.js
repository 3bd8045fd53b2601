function square(x) {
  const list = new Array(1);
  list.square = 9;
  return x > 4 ? list : [, ,];
}
console.log("\n9\n");
