// The answers that a file has inside, where no server can be asked. They are what the server answered when the file was written;
// what it would select, sort and search is selected, sorted and searched here.

const block = document.getElementById("frozen");
const data = block === null ? null : JSON.parse(block.textContent);

/** Whether the page is a file, which shows runs as they were when it was written. */
export const isFrozen = data !== null;

const LONGEST_EXCERPT = 600;

/** Answers as the server would. */
export async function answer(route, { run, ...parameters }) {
  const value = find(route, [run].flat(), parameters);
  if (value === undefined || value === null) throw new Error("The file has no more of this run.");
  if (typeof value.error === "string" && Object.keys(value).length === 1) throw new Error(value.error);
  return value;
}

function find(route, names, parameters) {
  const [name] = names;
  const own = data.of_runs[route]?.[name];
  switch (route) {
    case "about":
    case "runs":
    case "comparison":
      return data[route];
    case "settings":
      return differing(names);
    case "charts":
      return names.length === 1 && own !== undefined ? own : data.charts;
    case "series":
      return { runs: Object.fromEntries(names.map((own) => [own, curves(data.series[own], parameters)])), complete: true };
    case "completions":
      return completions(data.of_runs.group[name], parameters);
    case "group":
      return grouped(own, String(parameters.id));
    case "source":
      return data.sources[name]?.[`${parameters.plugin} ${parameters.hash}`];
    default:
      return own;
  }
}

/** The group of a completion. */
function grouped(there, id) {
  const group = there?.groups.find(({ items }) => items.some((item) => String(item.id) === id));
  return group === undefined ? undefined : { ...group, history: there.histories[group.row] ?? [] };
}

/** Settings in which some runs differ. */
function differing(names) {
  const all = Object.entries(data.settings ?? {});
  return Object.fromEntries(all.filter(([, values]) => new Set(names.map((name) => values[name])).size > 1));
}

/** The part of curves between two ends of an axis. */
function curves(whole, { x: axis = "step", from = -Infinity, to = Infinity, points = Infinity, metric = [] }) {
  if (whole?.series === undefined) return { x: [], steps: [], times: [], kinds: [], breaks: [], series: {}, per_point: 1, rows: 0 };
  const tokens = whole.series.num_tokens;
  const along = { step: whole.x, time: whole.times, tokens: tokens?.hi ?? tokens?.y ?? [] }[axis];
  const within = (at) => along[at] !== null && along[at] !== undefined && along[at] >= from && along[at] <= to;
  let places = [...whole.x.keys()].filter(within);
  // A file has as many points as it has; small pictures take some of them.
  const every = Math.max(1, Math.floor(places.length / (2 * points)));
  places = places.filter((_, i) => (places.length - 1 - i) % every === 0);
  const pick = (values) => places.map((at) => values[at]);
  const wanted = [metric].flat();
  const series = Object.entries(whole.series).filter(([name]) => wanted.length === 0 || wanted.includes(name));
  const part = ([name, columns]) => [name, Object.fromEntries(Object.entries(columns).map(([key, values]) => [key, pick(values)]))];
  return { ...whole, x: pick(along), steps: pick(whole.steps), times: pick(whole.times), kinds: pick(whole.kinds), series: Object.fromEntries(series.map(part)) };
}

const ORDERS = {
  newest: (a, b) => b.id - a.id,
  oldest: (a, b) => a.id - b.id,
  best: (a, b) => (b.reward ?? -Infinity) - (a.reward ?? -Infinity),
  worst: (a, b) => (a.reward ?? Infinity) - (b.reward ?? Infinity),
  longest: (a, b) => b.tokens - a.tokens,
  shortest: (a, b) => a.tokens - b.tokens,
  advantage: (a, b) => Math.abs(b.advantage ?? 0) - Math.abs(a.advantage ?? 0),
};

/** A page of completions. */
function completions(there, { offset = 0, limit = 40, sort, text = "", row, cut_off, ...ends }) {
  if (there === undefined) return undefined;
  const wanted = text.toLowerCase();
  const number = (value, otherwise) => (value === undefined || value === "" ? otherwise : Number(value));
  const within = (value, name) => {
    const [from, to] = [number(ends[`${name}_from`], -Infinity), number(ends[`${name}_to`], Infinity)];
    return (from === -Infinity && to === Infinity) || (value !== null && value >= from && value <= to);
  };
  const takes = (item) => within(item.step, "step") && within(item.reward, "reward") && within(item.tokens, "tokens") && (!cut_off || item.cut_off) && item.row === number(row, item.row);
  const all = there.groups.flatMap((group) => group.items);
  const order = all.filter(takes).sort((a, b) => (ORDERS[sort] ?? ORDERS.newest)(a, b) || b.id - a.id);
  const items = [];
  let next = offset;
  for (; next < order.length && items.length < limit; next++) {
    if (wanted === "" || has(order[next], wanted)) items.push(excerpt(order[next], wanted));
  }
  return { items, selected: order.length, all: all.length, recorded: there.all, newest: there.newest, next: next < order.length ? next : null, complete: true, share: 1, generation: 0 };
}

const has = (item, wanted) => [item.prompt, item.completion, ...item.messages.map((message) => message.content)].some((text) => text.toLowerCase().includes(wanted));

/** A completion as a list has it. */
function excerpt(item, wanted) {
  const around = (text) => {
    const at = wanted === "" ? -1 : text.toLowerCase().indexOf(wanted);
    const from = at > LONGEST_EXCERPT / 2 ? at - LONGEST_EXCERPT / 4 : 0;
    return `${from > 0 ? "\u2026" : ""}${text.slice(from, from + LONGEST_EXCERPT)}`;
  };
  return { ...item, prompt: around(item.prompt), completion: around(item.completion), turns: item.messages.length > 0 ? item.messages.length : null, failed: item.failed !== "" || item.error !== "" };
}
