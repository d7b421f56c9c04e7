import { createRequire } from 'node:module';

/**
 * The libraries behind metrics and logs. They are loaded when something is made of them: they take far longer to load than the rest of this
 * package, and most processes use one or none.
 */
const load = createRequire(import.meta.url);

export function promClient(): typeof import('prom-client') {
  return load('prom-client') as typeof import('prom-client');
}

export function pinoLibrary(): typeof import('pino') {
  return load('pino') as typeof import('pino');
}
