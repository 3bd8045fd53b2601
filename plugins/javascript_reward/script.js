// Modules as scripts.

// Patterns would take long on longer lines.
const LONGEST_IMPORT = 300;

/** Turns lines that import or export into lines of a script. */
export function asScript(code) {
  return code.split("\n").map(line).join("\n");
}

function line(text) {
  if (text.length > LONGEST_IMPORT || !/^[ \t]*(im|ex)port\b/.test(text)) return text;
  if (/^[ \t]*export[ \t]*(\{[^}]*\}|default[ \t]+[\w$]+)[ \t]*;?[ \t\r]*$/.test(text)) return "";
  if (/^[ \t]*export[ \t]/.test(text)) return text.replace(/^[ \t]*export[ \t]+(default[ \t]+)?/, "");
  const [, names, from] = text.match(/^[ \t]*import[ \t]+([\w$*{},\t ]+?)[ \t]+from[ \t]*["']([\w:/.-]+)["'][ \t]*;?[ \t\r]*$/) ?? [];
  if (names === undefined) return text;
  const bound = names.replace(/^\*[ \t]+as[ \t]+/, "").replace(/[ \t]+as[ \t]+/g, ": ");
  return `const ${bound} = require("${from}");`;
}
