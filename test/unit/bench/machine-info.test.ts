import { homedir } from 'node:os';
import { fileURLToPath } from 'node:url';
import { expect, it } from 'vitest';
import { describeMachine, sharedPath } from '../../../src/cli/bench/machine-info.js';

it('names a library without naming its user', () => {
  const root = fileURLToPath(new URL('../../../', import.meta.url));
  expect(sharedPath(`${root}.nixl/lib.so`)).toBe('.nixl/lib.so');
  expect(sharedPath(`${homedir()}/venv/lib.so`)).toBe('~/venv/lib.so');
  expect(sharedPath('/opt/nvidia/lib.so')).toBe('/opt/nvidia/lib.so');
  expect(describeMachine({ version: '1.5', path: `${root}.nixl/lib.so` }).nixl).toEqual({
    version: '1.5',
    path: '.nixl/lib.so',
  });
  expect(describeMachine(null).nixl).toBeNull();
});
