import { ArgumentError } from '../errors.js';
import { blockShape, sectionsOf } from '../mapping/block-shape.js';
import { dtypeBits } from '../mapping/dtype.js';
import type { LayerEntry, LayerView, ViewRole } from '../mapping/page-table.js';
import type { ContentJob } from './page-content.js';

/** A role's number is part of the content, so the order is fixed. */
export const CONTENT_ROLES: readonly ViewRole[] = [
  'key',
  'value',
  'kv',
  'latent',
  'index_k',
  'scale',
  'conv_state',
  'ssm_state',
  'aux',
];

/** Roles are numbered below this; part p of an entry adds p times as much, so that no two parts have the same content. */
const ROLE_LIMIT = 64;

/** A stretch of an entry whose cells are alike: one plane of heads and tokens, or one section of a state. */
export interface ContentPart {
  /** For messages: the role, and which part of it where it has several. */
  readonly role: string;
  readonly roleNumber: number;
  /** Inside the slot. */
  readonly offset: number;
  readonly tokenMajor: boolean;
  readonly heads: number;
  /** Global index of the first head, or of the first unit of a section. */
  readonly firstHead: number;
  /** Of one head and one token; of one unit of a section. */
  readonly cellBytes: number;
}

/**
 * What one layer of a view consists of. Global indices make the content of a byte the same on every rank that holds it, whatever the
 * split: a page that is verified under another split expects the bytes that its writer wrote.
 *
 * @param ordinal how many views of the same role the group has before this one (scales of keys, then of values)
 * @throws ArgumentError for an entry whose bytes do not all belong to a cell: it could not be verified to its last byte
 */
export function contentParts(
  view: LayerView,
  entry: LayerEntry,
  tokensPerBlock: number,
  job: Pick<ContentJob, 'firstHead' | 'firstUnits'>,
  ordinal: number,
): readonly ContentPart[] {
  return view.layout === 'SECTIONED'
    ? sectionParts(view, entry, job)
    : planeParts(view, entry, tokensPerBlock, job, ordinal);
}

function planeParts(
  view: LayerView,
  entry: LayerEntry,
  tokensPerBlock: number,
  { firstHead }: Pick<ContentJob, 'firstHead'>,
  ordinal: number,
): readonly ContentPart[] {
  if (dtypeBits(view.dtype) === null) throw new ArgumentError(`${where(view, entry)}: unknown dtype '${view.dtype}'`);
  const shape = blockShape(view, entry.bytes, tokensPerBlock);
  if (shape === null || shape.cellBytes < 1 || shape.planes < 1) {
    throw new ArgumentError(
      `${where(view, entry)}: ${view.headsPerRank} heads x ${tokensPerBlock} tokens of ${view.headDim} ${view.dtype} elements do not ` +
        `make up the entry's ${entry.bytes} bytes`,
    );
  }
  const { planes, heads, cellBytes } = shape;
  if (planes > planesOf(view.role)) {
    throw new ArgumentError(
      `${where(view, entry)}: ${entry.bytes} bytes are ${planes} times what ${heads} heads x ${tokensPerBlock} tokens take`,
    );
  }
  return Array.from({ length: planes }, (_, plane) => {
    const part = ordinal * planes + plane;
    return {
      role: part === 0 ? view.role : `${view.role} ${part + 1}`,
      roleNumber: roleNumber(view, part),
      offset: entry.offset + plane * heads * tokensPerBlock * cellBytes,
      tokenMajor: view.layout === 'NHD',
      heads,
      // Every rank holds the same replicated bytes, so they cannot depend on which heads a rank has.
      firstHead: view.layout === 'REPLICATED' ? 0 : firstHead,
      cellBytes,
    };
  });
}

function sectionParts(
  view: LayerView,
  entry: LayerEntry,
  { firstUnits }: Pick<ContentJob, 'firstUnits'>,
): readonly ContentPart[] {
  const sections = sectionsOf(view, entry.bytes);
  const first = firstUnits?.[view.role];
  if (first === undefined || first.length !== sections.length) {
    throw new ArgumentError(
      `${where(view, entry)}: firstUnits must name the first unit of each of the ${sections.length} sections, got ${String(first)}`,
    );
  }
  const total = sections.reduce((sum, { bytes }) => sum + bytes, 0);
  if (total !== entry.bytes) {
    throw new ArgumentError(`${where(view, entry)}: its sections are ${total} bytes, the entry is ${entry.bytes}`);
  }
  let offset = entry.offset;
  return sections.map(({ bytes, unitBytes }, section) => {
    const part = {
      role: sections.length === 1 ? view.role : `${view.role} section ${section}`,
      roleNumber: roleNumber(view, section),
      offset,
      tokenMajor: false,
      heads: bytes / unitBytes,
      firstHead: first[section] as number,
      cellBytes: unitBytes,
    };
    offset += bytes;
    return part;
  });
}

/** K and V, or the scales of both, in one entry. */
function planesOf(role: ViewRole): number {
  return role === 'kv' || role === 'scale' ? 2 : 1;
}

function roleNumber({ role }: LayerView, part: number): number {
  return CONTENT_ROLES.indexOf(role) + part * ROLE_LIMIT;
}

function where(view: LayerView, entry: LayerEntry): string {
  return `layer ${entry.layer}, ${view.role}`;
}
