Array.prototype.map = function () {
  return [true];
};
Array.from = () => [9];
function square(x) {
  arguments[0] = 9;
}
