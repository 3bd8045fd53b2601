"use strict";
export default function square(x) {
  return [x].map((y) => y ** 2)[0];
}
process.stdin.on("data", (text) => {
  if (text) process.stdout.write(`${square(+text)}\n`);
});
