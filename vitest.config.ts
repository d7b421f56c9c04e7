import { defineConfig } from 'vitest/config';

export default defineConfig({
  test: {
    include: ['test/**/*.test.ts'],
    testTimeout: 30_000,
    hookTimeout: 30_000,
    pool: 'forks',
    maxWorkers: 2,
    // Tests stay on the loopback interface.
    env: { UCX_NET_DEVICES: process.env['UCX_NET_DEVICES'] ?? 'lo' },
  },
});
