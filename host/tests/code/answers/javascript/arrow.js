const square = (x) => x * x;
const lines = require("fs").readFileSync("/dev/stdin", "utf8").trim().split("\n").filter(Boolean);
lines.forEach((line) => console.log(square(parseInt(line, 10))));
