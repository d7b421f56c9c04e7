import { chmod, link, mkdir, open, rename, rm } from 'node:fs/promises';
import { join, resolve } from 'node:path';
import { keyFileText, publicKeyFileText } from '../wire/curve-key-file.js';
import { generateCurveKeyPair } from '../wire/curve-keys.js';
import { text, type ValueReader } from './option-types.js';
import { flag, readOptions, value } from './options.js';
import { UsageError } from './usage-error.js';

/** Becomes a file name, so it may not lead elsewhere. */
const keyName: ValueReader<string> = (option, typed) => {
  if (!/^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$/.test(typed)) {
    throw new UsageError(`${option}: '${typed}' is not a name; use letters, digits, dot, dash and underscore`);
  }
  return typed;
};

export const KEYGEN_OPTIONS = {
  out: value('DIR', 'folder for the two files; made when only it is missing', text, '.'),
  name: value('NAME', 'of the files: NAME.key_secret and NAME.key', keyName, 'kv-transceiver'),
  force: flag('replace files that are there; peers must learn the new key'),
} as const;

/** `kv-transceiver keygen`: writes a key pair, prints the public key and what to put into the configuration. @returns the exit code */
export async function keygenCommand(args: readonly string[]): Promise<number> {
  const { out, name, force } = readOptions(KEYGEN_OPTIONS, args);
  const folder = resolve(out);
  const secretFile = join(folder, `${name}.key_secret`);
  const publicFile = join(folder, `${name}.key`);
  const pair = generateCurveKeyPair();
  try {
    await makeFolder(folder);
    await writeWhole(secretFile, keyFileText(pair), 0o600, force);
    await writeWhole(publicFile, publicKeyFileText(pair.publicKey), 0o644, true);
  } catch (error) {
    const { code, path } = error as NodeJS.ErrnoException;
    if (code === undefined) throw error;
    if (code === 'EEXIST') {
      throw new UsageError(`${secretFile} is there already; choose another --name, or --force to replace it`);
    }
    throw new UsageError(`--out: cannot write ${path ?? folder} (${code}); name a folder that you may write to`);
  }
  process.stdout.write(`${report(pair.publicKey, secretFile, publicFile)}\n`);
  return 0;
}

function report(publicKey: string, secretFile: string, publicFile: string): string {
  const key = JSON.stringify(publicKey);
  return [
    `public key  ${publicKey}`,
    `secret      ${secretFile} (mode 0600: keep it so, and out of repositories)`,
    `public      ${publicFile}`,
    '',
    'One pair for the whole cluster: copy the secret file to every rank, and configure each with',
    '',
    'security:',
    '  curve:',
    `    secretKeyFile: ${JSON.stringify(secretFile)}`,
    '',
    'A pair for each server: configure its peers with',
    '',
    'security:',
    '  curve:',
    '    secretKeyFile: their own secret file',
    '    peers:',
    `      "*": ${key}   # or the host, or tcp://host:port of this server`,
    '',
    'For a client whose address no peer knows beforehand:',
    '',
    'security:',
    '  allowedClients:',
    `    - ${key}`,
  ].join('\n');
}

/** One level: with `recursive` a folder that the kernel refuses (below /proc) is tried for ever. */
async function makeFolder(folder: string): Promise<void> {
  try {
    await mkdir(folder, { mode: 0o700 });
  } catch (error) {
    if ((error as NodeJS.ErrnoException).code !== 'EEXIST') throw error;
  }
}

/** Under another name first, so that nobody ever reads half a key, nor one with the mode still to come. */
async function writeWhole(file: string, content: string, mode: number, replace: boolean): Promise<void> {
  const temporary = `${file}.${process.pid}.new`;
  try {
    const handle = await open(temporary, 'wx', mode);
    try {
      await handle.writeFile(content);
      await handle.sync();
    } finally {
      await handle.close();
    }
    // The umask may have taken more away than is wanted of the public file.
    await chmod(temporary, mode);
    if (replace) await rename(temporary, file);
    // Unlike rename this fails when the name is taken, also by someone who was quicker.
    else await link(temporary, file);
  } finally {
    await rm(temporary, { force: true });
  }
}
