// Requests to the server; a file answers them itself. The page's address has the token; acts repeat it in a header, which no other page
// can send.

import { answer as frozenAnswer, isFrozen } from "./frozen.js";

/** Whether the server answers; `changed` is called when that changes. */
export const server = { answers: true, changed: () => {} };

const STOPPED = "rlhost ui does not answer: was it stopped?";

function answers(yes) {
  if (server.answers === yes) return;
  server.answers = yes;
  server.changed();
}

const TOKEN = location.pathname.split("/")[1] ?? "";

function address(route, parameters) {
  const query = new URLSearchParams();
  for (const [name, value] of Object.entries(parameters)) {
    for (const one of [value].flat()) {
      if (one !== undefined && one !== null && one !== "") query.append(name, one);
    }
  }
  return `api/${route}?${query}`;
}

async function answer(response) {
  const value = await response.json().catch(() => null);
  if (!response.ok) throw new Error(value?.error ?? `the server answered ${response.status}`);
  return value;
}

async function send(url, options) {
  let response;
  try {
    response = await fetch(url, { credentials: "omit", ...options });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    answers(false);
    throw new Error(STOPPED, { cause: error });
  }
  // Another one, started in its place, does not know this page.
  const isOwn = response.status !== 403 || options?.method === "POST";
  answers(isOwn);
  return answer(response);
}

/** Asks for something. */
export const ask = (route, parameters = {}, options = {}) => (isFrozen ? frozenAnswer(route, parameters) : send(address(route, parameters), options));

/** Changes something. */
export const act = (route, parameters = {}, body = null) =>
  send(address(route, parameters), { method: "POST", headers: { "x-rlhost-token": TOKEN }, body });

/** Follows a run. A page that nobody sees does not: browsers allow few connections to a server. In a file, nothing happens. */
export function follow(parameters, take, state) {
  if (isFrozen) return () => {};
  let source = null;
  const open = () => {
    if (source !== null || document.hidden) return;
    source = new EventSource(address("live", parameters()));
    source.onopen = () => (answers(true), state("live"));
    source.onmessage = (event) => take(JSON.parse(event.data));
    source.onerror = () => {
      // What it has told since is asked for again.
      close();
      state("away");
      // A stream does not say why it ended.
      ask("about").catch(() => {});
      timer = setTimeout(open, 2000);
    };
  };
  let timer = 0;
  const close = () => {
    clearTimeout(timer);
    source?.close();
    source = null;
  };
  const seen = () => (document.hidden ? close() : open());
  document.addEventListener("visibilitychange", seen);
  open();
  return () => {
    document.removeEventListener("visibilitychange", seen);
    close();
  };
}
