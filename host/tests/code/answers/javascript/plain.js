function square(x) {
  return x * x;
}
const line = readline();
if (line !== null) console.log(square(Number(line)));
