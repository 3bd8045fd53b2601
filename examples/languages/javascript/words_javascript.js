// Prefers completions of a target number of words. Save the file while a run uses it, and the run goes on with what it says then.

/** Prefers completions of a target number of words. */
export function words_javascript(completion, { target = 20 }) {
  const words = completion.match(/\S+/g)?.length ?? 0;
  // null is no score: the completion is left out of its group.
  return words > 0 ? -Math.abs(words - target) : null;
}
