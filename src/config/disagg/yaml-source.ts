import { isMap, isScalar, isSeq, LineCounter, type Node, parseDocument } from 'yaml';
import { camelCase } from '../setting-keys.js';

/** A configuration file is a few KiB; what is larger is the wrong file. */
const MAX_CHARACTERS = 1024 * 1024;

/** Where a key stands in the file. */
export interface YamlPlace {
  readonly line: number;
  /** As the file spells it, `a.b.c`; '' for the whole file. */
  readonly keyPath: string;
}

/** Something wrong with the file as YAML. */
export interface YamlFault {
  readonly line: number;
  readonly message: string;
}

/** A YAML file as plain values, and where each of them came from. */
export interface YamlSource {
  readonly value: unknown;
  readonly faults: readonly YamlFault[];
  /** The place of the key, or of the nearest one above it. Path elements are in camelCase, whatever the file's spelling. */
  locate(path: readonly string[]): YamlPlace;
}

/** Syntax errors, keys given twice, several documents and alias bombs are faults; nothing is thrown. */
export function readYaml(text: string): YamlSource {
  if (text.length > MAX_CHARACTERS) {
    const message = `the file has ${text.length} characters, more than ${MAX_CHARACTERS}; is it the right one?`;
    return { value: null, faults: [{ line: 1, message }], locate: () => ({ line: 1, keyPath: '' }) };
  }
  const lines = new LineCounter();
  const document = parseDocument(text, { lineCounter: lines, prettyErrors: false });
  const lineAt = (offset: number): number => Math.max(1, lines.linePos(offset).line);
  const faults = [...document.errors, ...document.warnings].map(({ message, pos }) => ({
    line: lineAt(pos[0]),
    message,
  }));
  let value: unknown = null;
  if (faults.length === 0) {
    try {
      value = document.toJS({ maxAliasCount: 100 });
    } catch (error) {
      // The library reports an alias that repeats too much, or names nothing, only here.
      faults.push({ line: 1, message: error instanceof Error ? error.message : String(error) });
    }
  }
  return { value, faults, locate: (path) => locate(document.contents, path, lineAt) };
}

function locate(root: Node | null, path: readonly string[], lineAt: (offset: number) => number): YamlPlace {
  let node: unknown = root;
  let line = lineAt(root?.range?.[0] ?? 0);
  const spelled: string[] = [];
  for (const name of path) {
    if (isMap(node)) {
      const pair = node.items.find(({ key }) => isScalar(key) && camelCase(String(key.value)) === name);
      if (pair === undefined || !isScalar(pair.key)) break;
      spelled.push(String(pair.key.value));
      line = lineAt(pair.key.range?.[0] ?? 0);
      node = pair.value;
    } else if (isSeq(node)) {
      const item = node.items[Number(name)] as Node | undefined;
      if (item === undefined) break;
      spelled.push(name);
      line = lineAt(item.range?.[0] ?? 0);
      node = item;
    } else break;
  }
  return { line, keyPath: spelled.join('.') };
}
