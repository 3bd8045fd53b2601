// What a reward needs of the contract of plugin-sdk/wit/, as the component model's canonical ABI
// lays it out, and the memory that calls need. With asc's stub runtime nothing is freed one by
// one; `after` frees everything, so that only numbers may be kept from one call to the next.

export function cabi_realloc(old: usize, oldSize: usize, align: usize, size: usize): usize {
  const address = heap.alloc(size);
  memory.copy(address, old, min(oldSize, size));
  return address;
}

export function after(answer: usize): void {
  heap.reset();
}

/** The contract's list<T> and string. */
@unmanaged
export class List {
  address: usize = 0;
  length: i32 = 0;

  set(text: string): void {
    const bytes = String.UTF8.encode(text);
    this.address = changetype<usize>(bytes);
    this.length = bytes.byteLength;
  }

  @inline at(index: i32): u8 {
    return load<u8>(this.address + index);
  }

  text(): string {
    return String.UTF8.decodeUnsafe(this.address, this.length);
  }
}

export function info(
  name: string,
  version: string,
  description: string,
  schema: string,
  needs: string[],
  stateless: bool,
): usize {
  const names = heap.alloc(8 * needs.length);
  for (let i = 0; i < needs.length; i++) stringAt(names, i).set(needs[i]);
  const answer = heap.alloc(44);
  changetype<List>(answer).set(name);
  changetype<List>(answer + 8).set(version);
  changetype<List>(answer + 16).set(description);
  changetype<List>(answer + 24).set(schema);
  store<usize>(answer, names, 32);
  store<i32>(answer, needs.length, 36);
  store<bool>(answer, stateless, 40);
  return answer;
}

/** What `configure` answers; null where all is well. */
export function configured(error: string | null): usize {
  const answer = heap.alloc(16);
  store<bool>(answer, error !== null);
  store<u8>(answer, 0, 4); // error.config
  if (error !== null) changetype<List>(answer + 8).set(error);
  return answer;
}

/** What `score` answers, row by row. */
export class Scores {
  private rewards: usize;

  constructor(private rows: i32) {
    this.rewards = heap.alloc(8 * rows);
  }

  set(row: i32, reward: f32): void {
    store<bool>(this.rewards + 8 * row, true);
    store<f32>(this.rewards + 8 * row, reward, 4);
  }

  setNone(row: i32): void {
    store<bool>(this.rewards + 8 * row, false);
  }

  answer(): usize {
    const answer = heap.alloc(20);
    store<bool>(answer, false);
    store<usize>(answer, this.rewards, 4);
    store<i32>(answer, this.rows, 8);
    store<usize>(answer, 0, 12); // no metrics
    store<i32>(answer, 0, 16);
    return answer;
  }
}

/** Item of a list<string>. */
export function stringAt(strings: usize, index: i32): List {
  return changetype<List>(strings + 8 * index);
}

/** The values of the column `name`, or 0. */
export function columnNamed(name: string, columns: usize, length: i32): usize {
  for (let i = 0; i < length; i++) {
    const column = columns + 16 * i;
    if (changetype<List>(column).text() == name) return changetype<List>(column + 8).address;
  }
  return 0;
}
