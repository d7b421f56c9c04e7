import { readFileSync } from 'node:fs';

/** From package.json, so that it is written once. */
export const PACKAGE_VERSION: string = (
  JSON.parse(readFileSync(new URL('../package.json', import.meta.url), 'utf8')) as { readonly version: string }
).version;
