import type { Random } from '../sim/core/random.js';

/** Values at the edges of what readers check, and of every kind. */
const EDGES: readonly unknown[] = [
  null,
  undefined,
  true,
  false,
  0,
  -0,
  -1,
  1,
  0.5,
  255,
  256,
  65535,
  65536,
  2 ** 31 - 1,
  2 ** 31,
  2 ** 32,
  2 ** 53 - 1,
  2 ** 53,
  -(2 ** 31),
  1e308,
  Number.NaN,
  Number.POSITIVE_INFINITY,
  2n ** 63n - 1n,
  2n ** 64n - 1n,
  -(2n ** 63n),
  '',
  'host',
  'aux',
  'tcp://127.0.0.1:1',
  'ipc:///etc/passwd',
  '__proto__',
  'constructor',
  'x'.repeat(300),
  '\u0000\ud83d\ude00',
  [],
  {},
  [[[[]]]],
  { kind: 'device', deviceId: 1 },
];

type Node = Record<string, unknown> | unknown[];

function isNode(value: unknown): value is Node {
  return typeof value === 'object' && value !== null && !(value instanceof Uint8Array);
}

/** Makes `edits` changes at random places of `value`, which it takes over: values replaced, nudged, removed, repeated, moved. */
export function mutateValue(random: Random, value: unknown, edits: number): unknown {
  if (!isNode(value)) return random.pick(EDGES);
  for (let edit = 0; edit < edits; edit++) editOnce(random, value);
  return value;
}

function editOnce(random: Random, root: Node): void {
  const parent = randomNode(random, root);
  const keys = Object.keys(parent);
  if (keys.length === 0) {
    put(parent, random.pick(['a', 'rank', '__proto__']), random.pick(EDGES));
    return;
  }
  const key = random.pick(keys);
  const old = Reflect.get(parent, key) as unknown;
  switch (random.below(7)) {
    case 0:
      if (Array.isArray(parent)) parent.splice(Number(key), 1);
      else Reflect.deleteProperty(parent, key);
      break;
    case 1:
      if (Array.isArray(parent)) for (let i = random.between(1, 20); i > 0; i--) parent.push(old);
      else put(parent, `${key}2`, old);
      break;
    case 2:
      put(parent, key, nudged(random, old));
      break;
    case 3: {
      const other = randomNode(random, root);
      // Not a node that holds `parent`: the result must stay a tree.
      if (!isNode(old) && !isNode(other)) put(parent, key, other);
      else put(parent, key, random.pick(EDGES));
      break;
    }
    case 4:
      put(parent, key, [old]);
      break;
    default:
      put(parent, key, random.pick(EDGES));
  }
}

function nudged(random: Random, value: unknown): unknown {
  if (typeof value === 'number') return value + random.pick([-1, 1, 0.5, 2 ** 16, 2 ** 31, -value, value]);
  if (typeof value === 'bigint') return value + random.pick([-1n, 1n, 2n ** 63n]);
  if (typeof value === 'string')
    return value.slice(0, random.below(value.length + 1)) + random.pick(['', 'x', '\n', '\0']);
  if (typeof value === 'boolean') return !value;
  return random.pick(EDGES);
}

function randomNode(random: Random, root: Node): Node {
  let node = root;
  for (let depth = random.below(10); depth > 0; depth--) {
    const inner = Object.values(node).filter(isNode);
    if (inner.length === 0) break;
    node = random.pick(inner);
  }
  return node;
}

/** Also a key such as __proto__ becomes a plain property. */
function put(node: Node, key: string, value: unknown): void {
  Object.defineProperty(node, key, { value, writable: true, enumerable: true, configurable: true });
}
