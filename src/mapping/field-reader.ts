import { ArgumentError, ProtocolError } from '../errors.js';

/** Whose value is read: decides which error a bad one is. */
export type ValueOrigin = 'own' | 'peer';

/** An object of which nothing is known yet. */
export type Fields = Readonly<Record<string, unknown>>;

/**
 * Role: reads untrusted values field by field and names the field in every refusal.
 * Ordering: stops at the first bad field. Its path is put together only then.
 */
export class FieldReader {
  readonly #origin: ValueOrigin;

  constructor(origin: ValueOrigin) {
    this.#origin = origin;
  }

  /** @throws ProtocolError for a peer's value, ArgumentError for an own one */
  refuse(field: string, rule: string): never {
    const message = `page table: ${field} ${rule}`;
    throw this.#origin === 'peer'
      ? new ProtocolError(message, { details: { field } })
      : new ArgumentError(message, { details: { field } });
  }

  /** @param absent what a field that is not there counts as; default: there must be one */
  integer(of: Fields, name: string, path: string, min: number, max: number, absent?: number): number {
    const value = absent === undefined ? of[name] : (of[name] ?? absent);
    if (typeof value !== 'number' || !Number.isSafeInteger(value) || value < min || value > max) {
      this.refuse(`${path}.${name}`, `must be an integer from ${min} to ${max}, got ${shown(value)}`);
    }
    return value;
  }

  oneOf<T extends string>(of: Fields, name: string, path: string, allowed: readonly T[]): T {
    const value = of[name];
    const found = allowed.find((candidate) => candidate === value);
    if (found === undefined)
      this.refuse(`${path}.${name}`, `must be one of ${allowed.join(', ')}, got ${shown(value)}`);
    return found;
  }

  text(of: Fields, name: string, path: string, maxLength: number): string {
    const value = of[name];
    if (typeof value !== 'string' || value.length === 0 || value.length > maxLength) {
      this.refuse(`${path}.${name}`, `must be a string of 1 to ${maxLength} characters, got ${shown(value)}`);
    }
    return value;
  }

  object(value: unknown, field: string): Fields {
    if (typeof value !== 'object' || value === null || Array.isArray(value)) {
      this.refuse(field, `must be an object, got ${shown(value)}`);
    }
    return value as Fields;
  }

  list(value: unknown, field: string, maxLength: number): readonly unknown[] {
    if (!Array.isArray(value)) this.refuse(field, `must be a list, got ${shown(value)}`);
    if (value.length > maxLength) this.refuse(field, `has ${value.length} entries, at most ${maxLength} are allowed`);
    // A list with gaps is not what it says it is: `map` would leave them out, and what is behind would move up.
    return value.includes(undefined) ? Array.from(value) : value;
  }
}

/** Short and safe whatever the value is: it ends up in a message to people. */
function shown(value: unknown): string {
  if (typeof value === 'string') return JSON.stringify(value.length > 40 ? `${value.slice(0, 40)}...` : value);
  if (typeof value === 'number' || typeof value === 'bigint' || typeof value === 'boolean') return String(value);
  if (value === null || value === undefined) return String(value);
  return Array.isArray(value) ? 'a list' : `a value of type ${typeof value}`;
}
