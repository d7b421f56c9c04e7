import { type Capabilities, capabilities, nixlPackageTree } from '../agent/native.js';
import { CapabilityError } from '../errors.js';
import { PACKAGE_VERSION } from '../package-version.js';
import { flag, readOptions } from './options.js';

export const DOCTOR_OPTIONS = {
  json: flag('print everything as JSON'),
} as const;

const PLATFORM = `${process.platform}-${process.arch}`;
const HEADLINE = `kv-transceiver ${PACKAGE_VERSION}, Node ${process.version}, ${PLATFORM}`;
const THIS_BUILD = { version: PACKAGE_VERSION, node: process.version, platform: PLATFORM } as const;

/** `kv-transceiver doctor`: what is here, and for each thing that is not, why. @returns the exit code, 1 without the addon */
export async function doctorCommand(args: readonly string[]): Promise<number> {
  const { json } = readOptions(DOCTOR_OPTIONS, args);
  let found: Capabilities;
  try {
    found = await capabilities();
  } catch (error) {
    if (!(error instanceof CapabilityError)) throw error;
    sayWithoutAddon(error.message, await curveSupport(), json);
    return 1;
  }
  if (json) {
    process.stdout.write(`${JSON.stringify({ ...THIS_BUILD, ...found, curve: await curveSupport() }, null, 2)}\n`);
    return 0;
  }
  const { addon, host, nixl, cuda } = found;
  const lines = [
    HEADLINE,
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
  process.stdout.write(`${[...lines, curveLine(await curveSupport())].join('\n')}\n`);
  return 0;
}

interface CurveSupport {
  readonly available: boolean;
  readonly reason: string | null;
}

/** Loaded here: a broken installation of ZeroMQ must not keep the rest from being said. */
async function curveSupport(): Promise<CurveSupport> {
  try {
    const { capability, version } = await import('zeromq');
    if (capability.curve === true) return { available: true, reason: null };
    return {
      available: false,
      reason: `libzmq ${version} was built without it; install the zeromq package's prebuilt binary`,
    };
  } catch (error) {
    const why = error instanceof Error ? error.message : String(error);
    return { available: false, reason: `the zeromq package does not load (${why}); install it again` };
  }
}

function curveLine({ available, reason }: CurveSupport): string {
  return line('CURVE', available, reason ?? 'encrypted control plane; `kv-transceiver keygen` makes the keys');
}

/** Agents and devices are looked at by the addon; what can be said without it is where NIXL would be looked for. */
function sayWithoutAddon(reason: string, curve: CurveSupport, json: boolean): void {
  const library = process.env['KV_TRANSCEIVER_NIXL_LIB'] ?? null;
  const packageTree = nixlPackageTree() || null;
  if (json) {
    const report = { ...THIS_BUILD, addon: null, reason, nixlSearch: { library, packageTree }, curve };
    process.stdout.write(`${JSON.stringify(report, null, 2)}\n`);
    return;
  }
  const places = [
    library === null ? 'KV_TRANSCEIVER_NIXL_LIB is not set' : `KV_TRANSCEIVER_NIXL_LIB is ${library}`,
    packageTree === null ? '`npm run nixl` has not been run' : `\`npm run nixl\` installed ${packageTree}`,
  ];
  const unknown = 'not known without the addon';
  const lines = [
    HEADLINE,
    line('addon', false, reason),
    line('host agent', false, unknown),
    line('nixl agent', false, `${unknown}; ${places.join(', ')}`),
    line('CUDA', false, unknown),
    curveLine(curve),
  ];
  process.stdout.write(`${lines.join('\n')}\n`);
}

function line(name: string, isThere: boolean, text: string): string {
  return `${isThere ? 'yes' : 'no '}  ${name.padEnd(10)}  ${text}`;
}
