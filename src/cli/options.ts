import { parseArgs } from 'node:util';
import { nearestName } from './nearest-name.js';
import type { ValueReader } from './option-types.js';
import { UsageError } from './usage-error.js';

/** An option that takes a value. `fallback` is read like typed text; null = the option may be left out. */
export interface ValueOption<T, F extends string | null = string | null> {
  readonly kind: 'value';
  readonly placeholder: string;
  readonly about: string;
  readonly fallback: F;
  readonly read: ValueReader<T>;
}

export interface FlagOption {
  readonly kind: 'flag';
  readonly about: string;
}

export type OptionTable = Readonly<Record<string, ValueOption<unknown> | FlagOption>>;

/** What a table's options are after reading: camelCase names as in the table. */
export type OptionValues<T extends OptionTable> = {
  readonly [K in keyof T]: T[K] extends FlagOption
    ? boolean
    : T[K] extends ValueOption<infer V, infer F>
      ? F extends null
        ? V | null
        : V
      : never;
};

export function value<T>(
  placeholder: string,
  about: string,
  read: ValueReader<T>,
  fallback: string,
): ValueOption<T, string>;
export function value<T>(placeholder: string, about: string, read: ValueReader<T>): ValueOption<T, null>;
export function value<T>(
  placeholder: string,
  about: string,
  read: ValueReader<T>,
  fallback: string | null = null,
): ValueOption<T> {
  return { kind: 'value', placeholder, about, fallback, read };
}

export function flag(about: string): FlagOption {
  return { kind: 'flag', about };
}

/** `promptTokens` -> `--prompt-tokens`. */
export function flagName(key: string): string {
  return `--${key.replace(/[A-Z]/g, (letter) => `-${letter.toLowerCase()}`)}`;
}

/**
 * Reads a command line against a table.
 * @throws UsageError for an unknown option, a missing or repeated value, a stray word, or a value its reader refuses
 */
export function readOptions<T extends OptionTable>(table: T, args: readonly string[]): OptionValues<T> {
  const keyByFlag = new Map(Object.keys(table).map((key) => [flagName(key), key]));
  const typed = new Map<string, string | true>();
  const options = Object.fromEntries(
    Object.entries(table).map(([key, option]) => [
      flagName(key).slice(2),
      { type: option.kind === 'flag' ? ('boolean' as const) : ('string' as const) },
    ]),
  );
  const { tokens } = parseArgs({ args: [...args], options, strict: false, allowPositionals: true, tokens: true });

  for (const token of tokens) {
    if (token.kind === 'positional') {
      throw new UsageError(`'${token.value}' is not an option; options start with --, see --help`);
    }
    if (token.kind === 'option-terminator') continue;
    const key = keyByFlag.get(token.rawName);
    if (key === undefined) {
      const nearest = nearestName(token.rawName, [...keyByFlag.keys()]);
      throw new UsageError(
        `unknown option ${token.rawName}; ${nearest === null ? '' : `did you mean ${nearest}? `}see --help`,
      );
    }
    if (typed.has(key)) throw new UsageError(`${token.rawName}: given twice; give it once, lists as a,b,c`);
    if (table[key]?.kind === 'flag') {
      if (token.value !== undefined) throw new UsageError(`${token.rawName}: takes no value`);
      typed.set(key, true);
    } else {
      // `--model --chunk 4` would otherwise take the next option for the model's name.
      if (token.value === undefined || (!token.inlineValue && token.value.startsWith('--'))) {
        throw new UsageError(`${token.rawName}: the value is missing`);
      }
      typed.set(key, token.value);
    }
  }

  const values = Object.entries(table).map(([key, option]) => {
    if (option.kind === 'flag') return [key, typed.has(key)];
    const text = typed.get(key) ?? option.fallback;
    return [key, typeof text === 'string' ? option.read(flagName(key), text) : null];
  });
  return Object.fromEntries(values) as OptionValues<T>;
}

/** One line per option, for --help. */
export function describeOptions(table: OptionTable): string {
  const rows = Object.entries(table).map(([key, option]) => {
    const left = option.kind === 'flag' ? flagName(key) : `${flagName(key)} ${option.placeholder}`;
    const fallback = option.kind === 'value' && option.fallback !== null ? ` (default ${option.fallback})` : '';
    return [left, `${option.about}${fallback}`] as const;
  });
  const width = Math.max(...rows.map(([left]) => left.length));
  return rows.map(([left, right]) => `  ${left.padEnd(width)}  ${right}`).join('\n');
}
