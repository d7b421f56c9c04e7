import { z } from 'zod';
import { DEPRECATED_KEYS } from './deprecated-keys.js';
import { nearestKey } from './nearest-key.js';
import type { ConfigProblem, ConfigWarning } from './problem.js';
import { cacheTransceiverSchema } from './schema.js';

export interface NamedSettings {
  /** The input with every known key in camelCase and the deprecated ones taken out. */
  readonly settings: Readonly<Record<string, unknown>>;
  readonly problems: readonly ConfigProblem[];
  readonly warnings: readonly ConfigWarning[];
}

/** Paths of all settings, `a.b` for nested ones, in the order of the schema. */
export function settingPaths(): readonly string[] {
  return pathsOf(cacheTransceiverSchema, '');
}

/** Sorts the input's keys: known under either spelling, deprecated, unknown. Values are not looked at beyond their nesting. */
export function nameSettings(input: Readonly<Record<string, unknown>>): NamedSettings {
  const problems: ConfigProblem[] = [];
  const warnings: ConfigWarning[] = [];
  const current = new Map<string, unknown>();
  for (const [key, value] of Object.entries(input)) {
    const replacement = DEPRECATED_KEYS.get(camelCase(key));
    if (replacement === undefined) current.set(key, value);
    else warnings.push({ setting: key, message: `${key} is ignored: ${replacement}` });
  }
  // Entries rather than assignments: __proto__ would otherwise be no key any more, and nobody would find it unknown.
  const settings = renamed(Object.fromEntries(current), cacheTransceiverSchema, '', problems);
  return { settings, problems, warnings };
}

function renamed(
  input: Readonly<Record<string, unknown>>,
  schema: z.ZodObject,
  prefix: string,
  problems: ConfigProblem[],
): Record<string, unknown> {
  const known = Object.keys(schema.shape);
  const result: Record<string, unknown> = {};
  const spelledAs = new Map<string, string>();
  for (const [key, value] of Object.entries(input)) {
    const name = camelCase(key);
    if (!known.includes(name)) {
      const nearest = nearestKey(key, known);
      const hint = nearest === null ? `known are ${known.join(', ')}` : `did you mean ${prefix}${nearest}?`;
      problems.push({ setting: `${prefix}${key}`, message: `${prefix}${key} is not a setting: ${hint}` });
      continue;
    }
    const earlier = spelledAs.get(name);
    if (earlier !== undefined) {
      problems.push({
        setting: `${prefix}${name}`,
        message: `${prefix}${name} is given twice, as "${earlier}" and as "${key}"; remove one`,
      });
      continue;
    }
    spelledAs.set(name, key);
    const nested = objectSchema(schema.shape[name]);
    if (nested !== null && isMap(value)) result[name] = renamed(value, nested, `${prefix}${name}.`, problems);
    // The schema would take any object, and find nothing in it.
    else if (nested !== null && typeof value === 'object' && value !== null && !Array.isArray(value))
      problems.push({
        setting: `${prefix}${name}`,
        message: `${prefix}${name} must be a map of settings, got ${shownValue(value)}`,
      });
    // An empty YAML section is null; a plain setting that is null was written so, and its range decides.
    else if (nested === null || value !== null) result[name] = value;
  }
  return result;
}

function pathsOf(schema: z.ZodObject, prefix: string): string[] {
  return Object.entries(schema.shape).flatMap(([name, field]) => {
    const nested = objectSchema(field);
    return nested === null ? [`${prefix}${name}`] : pathsOf(nested, `${prefix}${name}.`);
  });
}

/** The object schema of a section, whatever default or null is allowed around it; null for a plain setting. */
function objectSchema(schema: unknown): z.ZodObject | null {
  let inner = schema;
  while (inner instanceof z.ZodDefault || inner instanceof z.ZodPrefault || inner instanceof z.ZodNullable) {
    inner = inner.def.innerType;
  }
  return inner instanceof z.ZodObject ? inner : null;
}

/** Not a `Map`, `Date` or the like: what those hold are no keys. Of objects with a prototype of their own the keys count. */
export function isMap(value: unknown): value is Readonly<Record<string, unknown>> {
  return Object.prototype.toString.call(value) === '[object Object]';
}

/** A value for messages, clipped. */
export function shownValue(value: unknown): string {
  if (typeof value === 'string') return JSON.stringify(value.slice(0, 64));
  if (typeof value === 'bigint') return `${value}n`;
  if (typeof value !== 'object') return value === undefined ? 'nothing' : String(value);
  if (value === null) return 'nothing';
  if (Array.isArray(value)) return 'a list';
  return isMap(value) ? 'a map' : `an object of ${Object.prototype.toString.call(value).slice(8, -1)}`;
}

/** `a_b` and `aB` are one name. */
export function camelCase(key: string): string {
  return key.replace(/_([a-z0-9])/g, (_, letter: string) => letter.toUpperCase());
}
