// Marks a text that was searched for, where it is shown.

/** Marks a text, in any case, in these elements; an empty one nowhere. */
export function markFound(elements, text) {
  if (globalThis.Highlight === undefined) return;
  CSS.highlights.delete("found");
  const wanted = text.toLowerCase();
  if (wanted === "") return;
  const found = new Highlight();
  for (const element of elements) {
    const nodes = document.createTreeWalker(element, NodeFilter.SHOW_TEXT);
    while (nodes.nextNode()) {
      const own = nodes.currentNode.data.toLowerCase();
      // Some letters have another length in lower case.
      if (own.length !== nodes.currentNode.data.length) continue;
      for (let at = own.indexOf(wanted); at >= 0; at = own.indexOf(wanted, at + wanted.length)) {
        const range = new Range();
        range.setStart(nodes.currentNode, at);
        range.setEnd(nodes.currentNode, at + wanted.length);
        found.add(range);
      }
    }
  }
  CSS.highlights.set("found", found);
}
