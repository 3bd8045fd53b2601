// What the browser keeps for the next time, where it keeps anything: a file may have no place for it.

export function kept(name) {
  try {
    return localStorage.getItem(name);
  } catch {
    return null;
  }
}

export function keep(name, value) {
  try {
    localStorage.setItem(name, value);
  } catch {
    // Then it is as it was the next time.
  }
}
