import { camelCase, isMap } from '../setting-keys.js';

/** Two values for one key. */
export interface InheritanceConflict {
  /** Below the section, in camelCase. */
  readonly path: readonly string[];
}

/**
 * What a section has, and what it takes over from the top of the file. Maps are merged key by key; a plain value that is given in both
 * places must be the same.
 */
export function inherit(
  section: Readonly<Record<string, unknown>>,
  shared: Readonly<Record<string, unknown>>,
  conflicts: InheritanceConflict[],
  path: readonly string[] = [],
): Record<string, unknown> {
  // Entries rather than assignments: a key such as __proto__ stays a key, and is found wrong where keys are looked at.
  const merged = new Map<string, unknown>(Object.entries(section));
  const ownKeyOf = new Map(Object.keys(section).map((key) => [camelCase(key), key]));
  for (const [key, value] of Object.entries(shared)) {
    const name = camelCase(key);
    const ownKey = ownKeyOf.get(name);
    if (ownKey === undefined) {
      merged.set(key, value);
      continue;
    }
    const own = section[ownKey];
    if (isMap(own) && isMap(value)) merged.set(ownKey, inherit(own, value, conflicts, [...path, name]));
    else if (!isSame(own, value)) conflicts.push({ path: [...path, name] });
  }
  return Object.fromEntries(merged);
}

function isSame(a: unknown, b: unknown): boolean {
  return a === b || JSON.stringify(a) === JSON.stringify(b);
}
