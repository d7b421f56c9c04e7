import { defineConfig } from 'vitest/config';

export default defineConfig({
  test: {
    include: ['test/**/*.test.ts'],
    // Against hangs only, on whatever machine: what a test waits for has a shorter deadline, which says what it saw.
    testTimeout: 150_000,
    hookTimeout: 150_000,
    pool: 'forks',
    maxWorkers: 2,
    // Tests stay on the loopback interface.
    env: { UCX_NET_DEVICES: process.env['UCX_NET_DEVICES'] ?? 'lo' },
  },
});
