// Where the page is: its addresses, and whether it hears of what is new.

/** A view's address: #/run/NAME/TAB?name=value. Runs' names may have slashes. */
export function address(name, tab = "overview", parameters = {}) {
  const query = new URLSearchParams(Object.entries(parameters).filter(([, v]) => v !== null && v !== undefined && v !== ""));
  return `#/run/${encodeURIComponent(name)}/${tab}${query.size > 0 ? `?${query}` : ""}`;
}

/** A part of an address; one that is malformed, as somebody may have typed it, is a name that no run has. */
function decoded(part) {
  try {
    return decodeURIComponent(part);
  } catch {
    return part;
  }
}

/** What the page's address asks for. */
export function place() {
  const [path, query = ""] = location.hash.replace(/^#\/?/, "").split("?");
  const [view, name, tab] = path.split("/").map(decoded);
  return { view: view || "runs", name, tab: tab || "overview", parameters: new URLSearchParams(query) };
}

/** Says how the page hears of what is new. */
export function connection(state) {
  const place = document.getElementById("connection");
  if (place === null) return;
  const texts = { live: "live", away: "no connection; trying again", none: "" };
  place.className = `connection ${state}`;
  place.textContent = texts[state] ?? "";
}
