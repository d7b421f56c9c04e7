import { expect, it } from 'vitest';
import { linksOf } from '../../../src/cli/bench/agent-availability.js';

it.each([
  [[], [], 'no peer access'],
  [[1], [1], 'NVLink to 1'],
  [[0, 2, 3], [2, 1, 0], 'PCIe to 0, NVLink to 2, an unknown link to 3'],
])('the machine of a bench says what joins its GPUs: %j by %j', (peerAccess, peerLinks, said) => {
  expect(linksOf({ peerAccess, peerLinks })).toBe(said);
});
