class Squares {
  static of(x) {
    return x * x;
  }
}
let square = Squares.of;
const rl = require("node:readline").createInterface({ input: process.stdin });
const lines = [];
rl.on("line", (line) => lines.push(line)).on("close", () => {
  for (const line of lines) console.log(square(Number(line)));
  process.exit(0);
});
