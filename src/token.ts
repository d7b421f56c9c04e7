/** Tokens travel as 32-bit words, and prompts are `Uint32Array`s. */
export const MAX_TOKEN = 0xffff_ffff;

/** In words, for errors. */
export const TOKEN_RANGE = 'tokens are integers in [0, 2^32)';

export function isToken(value: unknown): value is number {
  return Number.isInteger(value) && (value as number) >= 0 && (value as number) <= MAX_TOKEN;
}

const MOST_SHOWN = 80;

/** A value as an error shows it: it may be long or no JSON, and it is somebody else's. */
export function shown(value: unknown): string {
  const text = textOf(value);
  return text.length > MOST_SHOWN ? `${text.slice(0, MOST_SHOWN)}…` : text;
}

function textOf(value: unknown): string {
  if (typeof value === 'bigint') return `${value}n`;
  if (typeof value !== 'string' && (typeof value !== 'object' || value === null)) return String(value);
  try {
    return JSON.stringify(value) ?? typeof value;
  } catch {
    return `an ${typeof value}`;
  }
}
