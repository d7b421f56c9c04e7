import { camelCase, isMap } from './setting-keys.js';

/** As deep as keys are looked for. */
const MAX_DEPTH = 8;

/** How names are written where a configuration does not show it. */
export type DefaultSpelling = 'camelCase' | 'snake_case';

/**
 * Role: writes the names of settings as their user does.
 * Why: rules speak of settings in camelCase, and a user who writes `enable_pipelined_transfer` would look for a name that is nowhere in the file.
 */
export class KeySpelling {
  readonly #known: ReadonlySet<string>;
  readonly #written = new Map<string, string>();
  #isSnake: boolean;

  /**
   * @param configuration what the user wrote; its keys show the spelling
   * @param known names of settings in camelCase; other words are left alone
   */
  constructor(configuration: unknown, known: Iterable<string>, otherwise: DefaultSpelling) {
    this.#known = new Set(known);
    this.#isSnake = otherwise === 'snake_case';
    this.#learn(configuration, 0);
    for (const key of this.#written.values()) {
      if (camelCase(key) !== key) this.#isSnake = true;
      else if (/[A-Z]/.test(key)) this.#isSnake = false;
    }
  }

  /** @param name in camelCase */
  of(name: string): string {
    return this.#written.get(name) ?? (this.#isSnake ? snakeCase(name) : name);
  }

  /** A message with every name of a setting spelled; what stands in quotes is a value, and stays. */
  text(message: string): string {
    return message
      .split(/("(?:[^"\\]|\\.)*")/)
      .map((part, index) =>
        index % 2 === 1
          ? part
          : part.replace(/[a-z]+[A-Z][A-Za-z0-9]*/g, (word) => (this.#known.has(word) ? this.of(word) : word)),
      )
      .join('');
  }

  #learn(value: unknown, depth: number): void {
    if (!isMap(value) || depth === MAX_DEPTH) return;
    for (const [key, inner] of Object.entries(value)) {
      const name = camelCase(key);
      if (this.#known.has(name) && !this.#written.has(name)) this.#written.set(name, key);
      this.#learn(inner, depth + 1);
    }
  }
}

export function snakeCase(name: string): string {
  return name.replace(/[A-Z]/g, (letter) => `_${letter.toLowerCase()}`);
}
