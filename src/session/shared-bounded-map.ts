/**
 * A map that forgets beyond `capacity`, and whose entries belong to somebody: memory of what ended, kept on behalf of those who may ask again.
 * Invariant: when it is full, the oldest entry of whoever holds most goes. What one owner does therefore never makes it forget what it holds for
 *   owners of less, and alone it may have all.
 */
export class SharedBoundedMap<Key, Value> {
  readonly #capacity: number;
  readonly #values = new Map<Key, { readonly owner: string; readonly value: Value }>();
  /** Keys per owner, oldest first. */
  readonly #owners = new Map<string, Set<Key>>();

  constructor(capacity: number) {
    this.#capacity = capacity;
  }

  get size(): number {
    return this.#values.size;
  }

  get(key: Key): Value | undefined {
    return this.#values.get(key)?.value;
  }

  /** An entry that is set again becomes the newest, of its first owner: nobody takes over what is another's. */
  set(key: Key, value: Value, owner: string): void {
    const known = this.#values.get(key);
    const whose = known?.owner ?? owner;
    if (known !== undefined) this.delete(key);
    if (this.#values.size >= this.#capacity) this.#forgetOldest(this.#largest(this.#owners.get(whose)));
    const keys = this.#owners.get(whose) ?? new Set();
    this.#owners.set(whose, keys);
    keys.add(key);
    this.#values.set(key, { owner: whose, value });
  }

  delete(key: Key): boolean {
    const known = this.#values.get(key);
    if (known === undefined) return false;
    const keys = this.#owners.get(known.owner);
    keys?.delete(key);
    if (keys?.size === 0) this.#owners.delete(known.owner);
    return this.#values.delete(key);
  }

  #forgetOldest(keys: ReadonlySet<Key>): void {
    for (const oldest of keys) {
      this.delete(oldest);
      return;
    }
  }

  /** @param mine spares the search when it holds more than half */
  #largest(mine: ReadonlySet<Key> | undefined): ReadonlySet<Key> {
    let largest = mine ?? new Set<Key>();
    if (largest.size * 2 > this.#values.size) return largest;
    for (const keys of this.#owners.values()) if (keys.size > largest.size) largest = keys;
    return largest;
  }
}
