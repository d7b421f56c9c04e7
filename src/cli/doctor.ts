import { capabilities } from '../agent/native.js';
import { PACKAGE_VERSION } from '../package-version.js';
import { flag, readOptions } from './options.js';

export const DOCTOR_OPTIONS = {
  json: flag('print everything as JSON'),
} as const;

/** `kv-transceiver doctor`: what is here, and for each thing that is not, why. @returns the exit code */
export async function doctorCommand(args: readonly string[]): Promise<number> {
  const { json } = readOptions(DOCTOR_OPTIONS, args);
  const found = await capabilities();
  if (json) {
    process.stdout.write(`${JSON.stringify({ version: PACKAGE_VERSION, node: process.version, ...found }, null, 2)}\n`);
    return 0;
  }
  const { addon, host, nixl, cuda } = found;
  const lines = [
    `kv-transceiver ${PACKAGE_VERSION}, Node ${process.version}`,
    line('addon', true, `version ${addon.version}, Node-API ${addon.napiVersion}`),
    line('host agent', host.available, host.reason ?? 'shared memory between processes of this machine'),
    line(
      'nixl agent',
      nixl.available,
      nixl.available ? `${nixl.version ?? 'version unknown'}, ${nixl.path ?? ''}` : (nixl.reason ?? ''),
    ),
    ...nixl.notes.map((note) => `            ${note}`),
    line(
      'CUDA',
      cuda.available,
      cuda.available ? `${cuda.deviceCount} devices, driver ${cuda.driverVersion}` : (cuda.reason ?? ''),
    ),
  ];
  process.stdout.write(`${lines.join('\n')}\n`);
  return 0;
}

function line(name: string, isThere: boolean, text: string): string {
  return `${isThere ? 'yes' : 'no '}  ${name.padEnd(10)}  ${text}`;
}
