// No source file grows beyond what one can read in one go.
import { existsSync, readdirSync, readFileSync } from 'node:fs';
import { join, relative } from 'node:path';
import { fileURLToPath } from 'node:url';

const ROOT = fileURLToPath(new URL('..', import.meta.url));
const MAX_LINES = 600;
const FOLDERS = ['src', 'native', 'test', 'scripts', 'bench'];
const SOURCE = /\.(?:ts|mjs|cjs|js|cc|h|cu|def|py|sh)$/;

const tooLong = FOLDERS.filter((folder) => existsSync(join(ROOT, folder)))
  .flatMap((folder) => readdirSync(join(ROOT, folder), { recursive: true, withFileTypes: true }))
  .filter((entry) => entry.isFile() && SOURCE.test(entry.name))
  .map((entry) => join(entry.parentPath, entry.name))
  .map((file) => ({ file: relative(ROOT, file), lines: readFileSync(file, 'utf8').split('\n').length - 1 }))
  .filter(({ lines }) => lines > MAX_LINES);

for (const { file, lines } of tooLong)
  process.stderr.write(`${file}: ${lines} lines, at most ${MAX_LINES}; split it\n`);
process.stdout.write(tooLong.length === 0 ? 'file sizes: ok\n' : `file sizes: ${tooLong.length} files too long\n`);
process.exitCode = tooLong.length === 0 ? 0 : 1;
