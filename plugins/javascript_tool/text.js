// What the model may read of what its code said.

/** Shortens a text, and parts what templates might take for a mark: `<|end|>`, `</s>`, `[INST]`. */
export function asText(said, longest) {
  const parted = said.replace(/<(?=[^<>\s]+>)/g, "< ").replace(/\[(?=\/?[A-Z_]+\])/g, "[ ");
  const trimmed = parted.replace(/\s+$/, "");
  if (trimmed === "") return "(no output)";
  if (trimmed.length <= longest) return trimmed;
  // Half a surrogate pair is no text.
  const cut = trimmed.slice(0, longest).replace(/[\uD800-\uDBFF]$/, "");
  return `${cut}\n(${trimmed.length - cut.length} more characters)`;
}
