import { type Alias, type Document, isAlias, isCollection, isPair, type Node, visit } from 'yaml';

/** Values that all aliases of a file together may repeat; what follows them into maps and lists visits each as often as it is named. */
const MAX_REPEATED_VALUES = 10_000;

/** An alias (`*name`) that cannot be followed. */
export interface AliasFault {
  readonly alias: Alias;
  readonly message: string;
}

/**
 * Aliases of a file before anything follows them: those that name nothing, those that stand inside of what they name and so have no end, and too
 * many of the rest. A map with a key `<<` takes its aliases like any other.
 * @param shown names for messages
 */
export function aliasFaults(document: Document, shown: (name: string) => string): AliasFault[] {
  const faults: AliasFault[] = [];
  const targets = new Map<Alias, Node>();
  // An anchor may be given anew: an alias means the last one above it. Looked up here, because the library looks through the file for each alias.
  const anchors = new Map<string, Node>();
  visit(document, {
    Node: (_, node, path) => {
      if (!isAlias(node)) {
        if (node.anchor !== undefined) anchors.set(node.anchor, node as Node);
        return;
      }
      const target = anchors.get(node.source);
      const name = shown(node.source);
      if (target === undefined) faults.push({ alias: node, message: `*${name} needs its anchor, &${name}, above it` });
      else if (path.includes(target))
        faults.push({ alias: node, message: `*${name} stands inside of &${name}, which it names; remove it` });
      else targets.set(node, target);
    },
  });
  if (faults.length === 0) {
    const alias = firstTooMany(document, targets);
    if (alias !== null)
      faults.push({
        alias,
        message: `up to here aliases (*name) repeat more than ${MAX_REPEATED_VALUES} values; write them out`,
      });
  }
  return faults;
}

/** The alias with which they repeat more than they may. Each names what ended above it, whose size is known by then. */
function firstTooMany(document: Document, targets: ReadonlyMap<Alias, Node>): Alias | null {
  const sizes = new Map<unknown, number>();
  let repeated = 0;
  let first: Alias | null = null;
  const sizeOf = (node: unknown): number => {
    if (isPair(node)) return sizeOf(node.key) + sizeOf(node.value);
    let size = 1;
    if (isAlias(node)) {
      size = sizes.get(targets.get(node)) ?? 1;
      repeated += size;
      if (repeated > MAX_REPEATED_VALUES) first ??= node;
    } else if (isCollection(node)) {
      for (const item of node.items) size += sizeOf(item);
    }
    sizes.set(node, size);
    return size;
  };
  sizeOf(document.contents);
  return first;
}
