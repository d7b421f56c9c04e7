import { expect, it } from 'vitest';
import type { PageTable } from '../../src/mapping/page-table.js';
import { indexOf } from '../../src/mapping/table-index.js';

type Group = readonly [kind: string, views: Readonly<Record<string, readonly number[]>>];

/** Only what the index reads. */
const tableOf = (...groups: readonly Group[]): PageTable =>
  ({
    aux: null,
    layerGroups: groups.map(([kind, views]) => ({
      kind,
      views: Object.entries(views).map(([role, layers]) => ({ role, layers: layers.map((layer) => ({ layer })) })),
    })),
  }) as unknown as PageTable;

it('a layer that is attention and latent counts as latent, whichever group comes first', () => {
  const attention: Group = ['attention', { key: [0, 1] }];
  const latent: Group = ['latent', { latent: [1, 2] }];
  const kindsOf = (table: PageTable) => new Map([...indexOf(table).kinds].map(([layer, { kind }]) => [layer, kind]));
  const kinds = new Map([
    [0, 'attention'],
    [1, 'latent'],
    [2, 'latent'],
  ]);
  expect(kindsOf(tableOf(attention, latent))).toEqual(kinds);
  expect(kindsOf(tableOf(latent, attention))).toEqual(kinds);
});

it('names the first layer that each group holds again, also behind one that is named already', () => {
  const { heldTwice } = indexOf(
    tableOf(['attention', { key: [0, 1, 2] }], ['attention', { key: [3, 1, 2, 4] }], ['attention', { key: [2, 4, 5] }]),
  );
  expect(heldTwice).toEqual([
    { group: 1, role: 'key', layer: 1 },
    { group: 2, role: 'key', layer: 2 },
  ]);
  // Only behind the double of group 1 does its layer 4 come: it is counted all the same.
  const again = indexOf(
    tableOf(['attention', { key: [1] }], ['attention', { key: [1, 4] }], ['attention', { key: [4] }]),
  );
  expect(again.heldTwice.map(({ group, layer }) => [group, layer])).toEqual([
    [1, 1],
    [2, 4],
  ]);
});

it('two scales of a layer are keys and values; a third one is held twice', () => {
  const twice = tableOf(['attention', { key: [0] }], ['attention', { scale: [0, 0] }]);
  expect(indexOf(twice).heldTwice).toEqual([]);
  const thrice = tableOf(['attention', { scale: [0, 0] }], ['attention', { scale: [0] }]);
  expect(indexOf(thrice).heldTwice).toEqual([{ group: 1, role: 'scale', layer: 0 }]);
});
