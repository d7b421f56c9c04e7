import {
  type Document,
  isAlias,
  isMap,
  isScalar,
  isSeq,
  LineCounter,
  type Pair,
  parseDocument,
  visit,
  type YAMLMap,
} from 'yaml';
import { camelCase } from '../setting-keys.js';
import { aliasFaults } from './yaml-aliases.js';
import { faultText } from './yaml-fault.js';

/** A configuration file is a few KiB; what is larger is the wrong file. */
export const MAX_CHARACTERS = 1024 * 1024;
/** No setting lies deeper. */
const MAX_DEPTH = 64;
/** Merge keys that are followed for one place. */
const MAX_MERGES = 16;

/** Where a key stands in the file. */
export interface YamlPlace {
  readonly line: number;
  /** As the file spells them, from the top: as many of the path as are in the file. */
  readonly keys: readonly string[];
}

/** Something wrong with the file as YAML. */
export interface YamlFault {
  readonly line: number;
  /** From 1; 0 for the whole line. */
  readonly column: number;
  /** As the file spells it; '' outside of every key. */
  readonly keyPath: string;
  readonly message: string;
}

/** A YAML file as plain values, and where each of them came from. */
export interface YamlSource {
  readonly value: unknown;
  readonly faults: readonly YamlFault[];
  /**
   * The place of the key, or of the nearest one above it. Path elements are in camelCase, whatever the file's spelling.
   * @param written the last one exactly as it is in the file, of two that are one in camelCase
   */
  locate(path: readonly string[], written?: string): YamlPlace;
}

/**
 * Syntax errors, keys given twice, several documents, tags of values that are no map, list, text, number or flag, and aliases without an end are
 * faults; nothing is thrown.
 */
export function readYaml(text: string): YamlSource {
  if (text.length > MAX_CHARACTERS)
    return refused(`the file has ${text.length} characters, more than ${MAX_CHARACTERS}; is it the right one?`);
  const strange = strangeCharacter(text);
  if (strange !== null) return refused(`the file is not text: ${strange}; is it the right one?`);
  if (deepest(text) > MAX_DEPTH) return refused(`lists and maps are nested more than ${MAX_DEPTH} deep; no setting is`);
  const lines = new LineCounter();
  // Merge keys are of YAML 1.1 and widely used; keys that are no text would become text in ways of the library's own. Dates, bytes, sets and
  // ordered maps of YAML 1.1 would become objects whose content no check of a setting looks at: their tags are unknown here, whatever the
  // file says of its version.
  const options = {
    lineCounter: lines,
    prettyErrors: false,
    schema: 'core',
    resolveKnownTags: false,
    merge: true,
    stringKeys: true,
    logLevel: 'error',
  } as const;
  const document = parseDocument(text, options);
  const lineAt = (offset: number): number => Math.max(1, lines.linePos(offset).line);
  const faults = [...document.errors, ...document.warnings].map((error): YamlFault => {
    const { line, col } = lines.linePos(error.pos[0]);
    const keyPath = keyPathAt(document, error.pos[0]);
    const isTwice = error.code === 'DUPLICATE_KEY';
    return {
      line: Math.max(1, line),
      column: isTwice ? 0 : col,
      keyPath: keyPath.join('.'),
      message: isTwice ? 'is given twice; remove one' : faultText(error),
    };
  });
  if (faults.length === 0) faults.push(...faultsOfContent(document, lineAt));
  // Without a limit of the library's: it would not say where.
  const value: unknown = faults.length === 0 ? document.toJS({ maxAliasCount: -1 }) : null;
  return { value, faults, locate: (path, written) => locate(document, path, written, lineAt) };
}

/** Control characters as a terminal can show them, and not endlessly many. */
export function printableKey(key: string): string {
  const clipped = key.length <= 64 ? key : `${key.slice(0, 64)}…`;
  return clipped === '' || /[\p{Cc}\p{Cf}\p{Zl}\p{Zp}]/u.test(clipped) ? JSON.stringify(clipped) : clipped;
}

function refused(message: string): YamlSource {
  const fault = { line: 1, column: 0, keyPath: '', message };
  return { value: null, faults: [fault], locate: () => ({ line: 1, keys: [] }) };
}

/** Characters that no YAML may contain; a file of another kind has them at once. */
function strangeCharacter(text: string): string | null {
  // biome-ignore lint/suspicious/noControlCharactersInRegex: these are what is looked for
  const found = /[\u0000-\u0008\u000b\u000c\u000e-\u001f\u007f\ufffe\uffff]/.exec(text);
  if (found === null) return null;
  const code = found[0].charCodeAt(0).toString(16).toUpperCase().padStart(4, '0');
  return `character ${found.index + 1} is U+${code}`;
}

/** An upper bound of the nesting that costs no stack: the library's parser is recursive. */
function deepest(text: string): number {
  let [depth, most] = [0, 0];
  for (const character of text) {
    if (character === '{' || character === '[') most = Math.max(most, ++depth);
    else if ((character === '}' || character === ']') && depth > 0) depth -= 1;
  }
  const indents = /^( *)(?:[^ #\n]|$)/gm;
  const widest = new Set([...text.matchAll(indents)].map(([, spaces = '']) => spaces.length));
  const dashes = Math.max(0, ...[...text.matchAll(/^ *((?:- +|\? +)+)/gm)].map(([, run = '']) => run.length / 2));
  return Math.max(most, widest.size, dashes);
}

/**
 * What is no error of YAML and must not become a value: another version of it, aliases that name nothing or have no end and merges of what is no map,
 * which the library notices only when it makes values, if at all, and a key that objects understand in a way of their own, so that what it holds
 * would be nowhere.
 */
function faultsOfContent(document: Document, lineAt: (offset: number) => number): YamlFault[] {
  const faults: YamlFault[] = [];
  const add = (offset: number, message: string): void =>
    void faults.push({ line: lineAt(offset), column: 0, keyPath: keyPathAt(document, offset).join('.'), message });
  const { explicit, version } = document.directives?.yaml ?? {};
  if (explicit === true && version !== '1.2')
    add(
      0,
      `%YAML ${version} would make other values of 010, yes and dates; the file is read as YAML 1.2, remove the line`,
    );
  const aliases = aliasFaults(document, printableKey);
  for (const { alias, message } of aliases) add(alias.range?.[0] ?? 0, message);
  // What follows asks where aliases lead.
  if (aliases.length > 0) return faults;
  visit(document, {
    Pair: (_, { key, value }) => {
      if (isScalar(key) && key.value === '__proto__')
        add(key.range?.[0] ?? 0, 'is not a setting, and not possible as a key; remove it');
      if (!isScalar(key) || key.source !== '<<') return;
      const merged = isSeq(value) ? value.items : [value];
      if (!merged.every((one) => isMap(resolved(document, one))))
        add(key.range?.[0] ?? 0, 'takes a map, an alias of one (*name), or a list of those');
    },
  });
  return faults;
}

type Located = Pair<unknown, unknown> | undefined;

/** The pair of this name, in the map or in what is merged into it. */
function pairOf(document: Document, map: YAMLMap, name: string, merges = MAX_MERGES): Located {
  const own = map.items.find(({ key }) => isScalar(key) && camelCase(String(key.value)) === name);
  if (own !== undefined || merges === 0) return own;
  const merged = map.items.find(({ key }) => isScalar(key) && key.source === '<<')?.value;
  for (const one of isSeq(merged) ? merged.items : [merged]) {
    const node = resolved(document, one);
    const found = isMap(node) ? pairOf(document, node, name, merges - 1) : undefined;
    if (found !== undefined) return found;
  }
  return undefined;
}

function resolved(document: Document, node: unknown): unknown {
  return isAlias(node) ? node.resolve(document) : node;
}

function locate(
  document: Document,
  path: readonly string[],
  written: string | undefined,
  lineAt: (offset: number) => number,
): YamlPlace {
  let node: unknown = document.contents;
  let line = lineAt(document.contents?.range?.[0] ?? 0);
  const spelled: string[] = [];
  for (const [index, name] of path.entries()) {
    node = resolved(document, node);
    if (isMap(node)) {
      const exact = index === path.length - 1 ? written : undefined;
      const pair = node.items.find(({ key }) => isScalar(key) && key.value === exact) ?? pairOf(document, node, name);
      if (pair === undefined || !isScalar(pair.key)) break;
      spelled.push(printableKey(String(pair.key.value)));
      line = lineAt(pair.key.range?.[0] ?? 0);
      node = pair.value;
    } else if (isSeq(node)) {
      const item = node.items[Number(name)] as { readonly range?: readonly number[] } | undefined;
      if (item === undefined) break;
      spelled.push(name);
      line = lineAt(item.range?.[0] ?? 0);
      node = item;
    } else break;
  }
  return { line, keys: spelled };
}

/** Keys around a place in the text. */
function keyPathAt(document: Document, offset: number): string[] {
  const path: string[] = [];
  let node: unknown = document.contents;
  for (let depth = 0; depth < MAX_DEPTH && isMap(node); depth++) {
    const around = node.items.findLast(
      ({ key }) => isScalar(key) && (key.range?.[0] ?? Number.POSITIVE_INFINITY) <= offset,
    );
    if (around === undefined || !isScalar(around.key)) break;
    path.push(printableKey(String(around.key.value)));
    node = around.value;
  }
  return path;
}
