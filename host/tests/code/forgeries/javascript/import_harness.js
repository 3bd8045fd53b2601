let score;
import("./judge.js").then((judge) => (score = judge));
import("rlhost:plugin/cells@0.2.0").then((cells) => {
  for (;;) cells.open(512);
});
function square(x) {
  return score;
}
