import { nearestName } from './nearest-name.js';
import { UsageError } from './usage-error.js';

/** Reads the text behind one option. `option` is the flag as the user typed it, for messages. */
export type ValueReader<T> = (option: string, text: string) => T;

const SIZE_SUFFIXES: Readonly<Record<string, number>> = {
  '': 1,
  k: 2 ** 10,
  ki: 2 ** 10,
  m: 2 ** 20,
  mi: 2 ** 20,
  g: 2 ** 30,
  gi: 2 ** 30,
};

/** A positive whole number; k, Ki, M, Mi, G and Gi are powers of 1024: `8k` = 8192. */
export const size: ValueReader<number> = (option, text) => {
  const match = /^(\d+(?:\.\d+)?)\s*([kmg]i?)?$/i.exec(text.trim());
  const factor = SIZE_SUFFIXES[(match?.[2] ?? '').toLowerCase()];
  const value = match === null || factor === undefined ? Number.NaN : Number(match[1]) * factor;
  if (!Number.isSafeInteger(value) || value <= 0) {
    throw new UsageError(`${option}: '${text}' is not a positive whole number; write for example 512, 8k or 1Mi`);
  }
  return value;
};

/** A whole number of at least `minimum`. */
export function count(minimum: number, maximum = Number.MAX_SAFE_INTEGER): ValueReader<number> {
  return (option, text) => {
    const value = /^\d+$/.test(text.trim()) ? Number(text) : Number.NaN;
    if (!Number.isSafeInteger(value) || value < minimum || value > maximum) {
      const bound =
        maximum === Number.MAX_SAFE_INTEGER ? `of at least ${minimum}` : `between ${minimum} and ${maximum}`;
      throw new UsageError(`${option}: '${text}' is not a whole number ${bound}`);
    }
    return value;
  };
}

/** A finite number greater than zero, fractions allowed. */
export const positiveNumber: ValueReader<number> = (option, text) => {
  const value = /^\d*\.?\d+(?:e[+-]?\d+)?$/i.test(text.trim()) ? Number(text) : Number.NaN;
  if (!Number.isFinite(value) || value <= 0) {
    throw new UsageError(`${option}: '${text}' is not a number greater than 0`);
  }
  return value;
};

/** A finite number from `minimum` to `maximum`, fractions allowed. */
export function numberBetween(minimum: number, maximum: number): ValueReader<number> {
  return (option, text) => {
    const value = /^\d*\.?\d+(?:e[+-]?\d+)?$/i.test(text.trim()) ? Number(text) : Number.NaN;
    if (!(value >= minimum && value <= maximum)) {
      throw new UsageError(`${option}: '${text}' is not a number from ${minimum} to ${maximum}`);
    }
    return value;
  };
}

/** A share of the prompt: 0 <= value < 1. */
export const share: ValueReader<number> = (option, text) => {
  const value = /^\d*\.?\d+$/.test(text.trim()) ? Number(text) : Number.NaN;
  if (!(value >= 0 && value < 1)) {
    throw new UsageError(`${option}: '${text}' is not a share from 0 up to, not including, 1 (0.5 = half the prompt)`);
  }
  return value;
};

/** Items separated by commas, each read by `item`; empty items and repeated ones are refused. */
export function list<T>(item: ValueReader<T>): ValueReader<readonly T[]> {
  return (option, text) => {
    const values = text.split(',').map((part) => {
      if (part.trim() === '') throw new UsageError(`${option}: '${text}' has an empty item; write items as a,b,c`);
      return item(option, part.trim());
    });
    if (new Set(values).size !== values.length) throw new UsageError(`${option}: '${text}' names an item twice`);
    return values;
  };
}

/** One of `names`; `noun` says what they are. */
export function choice<const T extends string>(noun: string, names: readonly T[]): ValueReader<T> {
  return (option, text) => {
    const found = names.find((name) => name === text);
    if (found !== undefined) return found;
    const nearest = nearestName(text, names);
    const hint = nearest === null ? '' : `did you mean '${nearest}'? `;
    throw new UsageError(`${option}: unknown ${noun} '${text}'; ${hint}choose one of ${names.join(', ')}`);
  };
}

/** Any text that is not empty. */
export const text: ValueReader<string> = (option, value) => {
  if (value.trim() === '') throw new UsageError(`${option}: the value is empty`);
  return value;
};
