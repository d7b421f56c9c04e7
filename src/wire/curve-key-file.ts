import { constants } from 'node:fs';
import { type FileHandle, open } from 'node:fs/promises';
import { ConfigError } from '../errors.js';
import { type CurveKeyPair, publicKeyOf } from './curve-keys.js';

const MAX_FILE_BYTES = 64 * 1024;
const KEY_LINE = /^[ \t]*(public|secret)-key[ \t]*=[ \t]*"?([^"\s]{1,64})"?[ \t]*$/gm;

/** Text of a secret key file; also what CZMQ and pyzmq read as a certificate. */
export function keyFileText({ publicKey, secretKey }: CurveKeyPair): string {
  return [
    '# CURVE key pair of kv-transceiver. Secret: readable by its owner alone, never in a configuration or a repository.',
    'curve',
    `    public-key = "${publicKey}"`,
    `    secret-key = "${secretKey}"`,
    '',
  ].join('\n');
}

/** Text of the file that may be handed around. */
export function publicKeyFileText(publicKey: string): string {
  return `# CURVE public key of kv-transceiver.\ncurve\n    public-key = "${publicKey}"\n`;
}

/**
 * Takes the keys out of a key file's text. Nothing of the text enters a message.
 * @throws ConfigError when there is no secret key, more than one, or a public key that is not the secret's
 */
export function parseKeyFile(text: string, path: string): CurveKeyPair {
  const found = { public: [] as string[], secret: [] as string[] };
  for (const [, which, key] of text.matchAll(KEY_LINE)) found[which as 'public' | 'secret'].push(key as string);
  const [secretKey, ...moreSecrets] = found.secret;
  if (secretKey === undefined) {
    const hint =
      found.public.length > 0
        ? 'it has a public key only; name the secret file'
        : 'make one with `kv-transceiver keygen`';
    throw keyFileError(path, `has no line secret-key = "..."; ${hint}`);
  }
  if (moreSecrets.length > 0 || found.public.length > 1) throw keyFileError(path, 'has more than one key pair');
  let publicKey: string;
  try {
    publicKey = publicKeyOf(secretKey);
  } catch {
    // The cause could only repeat what the file holds.
    throw keyFileError(path, 'has a secret key that is not 40 characters of Z85');
  }
  const [stated = publicKey] = found.public;
  if (stated !== publicKey) throw keyFileError(path, 'has a public key that does not belong to its secret key');
  return { publicKey, secretKey };
}

/**
 * Reads the key pair of this process. The file must be readable by its owner alone (mode 0600 or 0400); one that root owns may be
 * readable by its group too (0640), as mounted secrets are.
 * @throws ConfigError naming the file and what to change
 */
export async function readCurveKeyFile(path: string): Promise<CurveKeyPair> {
  let file: FileHandle;
  try {
    // O_NONBLOCK: opening a pipe without a writer would wait for ever.
    file = await open(path, constants.O_RDONLY | constants.O_NONBLOCK);
  } catch (cause) {
    const code = (cause as NodeJS.ErrnoException).code ?? 'unknown error';
    const remedy =
      code === 'ENOENT' ? 'does not exist; make one with `kv-transceiver keygen`' : `cannot be read (${code})`;
    throw keyFileError(path, remedy, cause);
  }
  try {
    const { mode, size, uid } = await file.stat();
    if ((mode & constants.S_IFMT) !== constants.S_IFREG) throw keyFileError(path, 'is not a file');
    const forbidden = uid === 0 ? 0o037 : 0o077;
    if ((mode & forbidden) !== 0) {
      const shown = (mode & 0o777).toString(8).padStart(4, '0');
      throw keyFileError(path, `has mode ${shown}, so that others may read or change it; run chmod 600 on it`);
    }
    if (size > MAX_FILE_BYTES) throw keyFileError(path, `has ${size} bytes; a key file has a few hundred`);
    return parseKeyFile((await file.readFile()).subarray(0, MAX_FILE_BYTES).toString('utf8'), path);
  } finally {
    await file.close();
  }
}

function keyFileError(path: string, problem: string, cause?: unknown): ConfigError {
  return new ConfigError(`security.curve.secretKeyFile: ${path} ${problem}`, { cause, details: { path } });
}
