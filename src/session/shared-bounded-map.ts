/**
 * A map that forgets beyond `capacity`, and whose entries belong to somebody: memory of what ended, kept on behalf of those who may ask again.
 * Invariant: one owner holds at most `1 / SHARES` of it, beyond which its own oldest entry goes; when all is full, the oldest of whoever holds
 *   most. What one does therefore never makes it forget what it holds for owners of less.
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
    let keys = this.#owners.get(whose);
    if (keys !== undefined && keys.size >= Math.max(1, Math.floor(this.#capacity / SHARES))) this.#forgetOldest(keys);
    else if (this.#values.size >= this.#capacity) this.#forgetOldest(this.#largest(keys));
    keys = this.#owners.get(whose) ?? new Set();
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

  /** @param mine spares the search when it holds no less than all do on average */
  #largest(mine: ReadonlySet<Key> | undefined): ReadonlySet<Key> {
    let largest = mine ?? new Set<Key>();
    if (largest.size * this.#owners.size > this.#values.size) return largest;
    for (const keys of this.#owners.values()) if (keys.size > largest.size) largest = keys;
    return largest;
  }
}

const SHARES = 8;
