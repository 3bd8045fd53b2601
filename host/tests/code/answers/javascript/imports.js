import { readFileSync as read } from "fs";
import * as path from "node:fs";

export const square = (x) => x * x;

const text = read(0, "utf8");
if (text) console.log(String(square(Number(text))));

export { square };
export default square;
