import { type CudaDeviceFacts, capabilities, GPU_LINKS } from '../../agent/native.js';
import { UsageError } from '../usage-error.js';
import type { MachineInfo } from './output-contract.js';

type AgentKind = 'host' | 'nixl';

export async function isAgentAvailable(kind: AgentKind): Promise<boolean> {
  return (await capabilities())[kind].available;
}

/** @throws UsageError naming why the agent is not there and what to do */
export async function requireAgent(option: string, kind: AgentKind): Promise<void> {
  const found = (await capabilities())[kind];
  if (found.available) return;
  // The reason ends with how to get what is missing.
  const remedy = kind === 'nixl' ? ', or use the host agent' : '';
  throw new UsageError(`${option}: the ${kind} agent is not there: ${found.reason ?? 'unknown reason'}${remedy}`);
}

/** The GPUs of this machine, in the order of the driver. */
export async function gpuFacts(): Promise<MachineInfo['gpus']> {
  const { cuda } = await capabilities();
  const version = cuda.driverVersion ?? 0;
  const driver = `CUDA ${Math.floor(version / 1000)}.${Math.floor((version % 1000) / 10)}`;
  return cuda.devices.map((device) => ({ name: device.name, driver, link: linksOf(device) }));
}

/** What joins a GPU to the others, in words. */
export function linksOf({ peerAccess, peerLinks }: Pick<CudaDeviceFacts, 'peerAccess' | 'peerLinks'>): string {
  const links = peerAccess.map((peer, index) => `${GPU_LINKS[peerLinks[index] ?? 0]} to ${peer}`);
  return links.length === 0 ? 'no peer access' : links.join(', ');
}

export async function nixlFacts(): Promise<MachineInfo['nixl']> {
  const { nixl } = await capabilities();
  return nixl.available ? { version: nixl.version ?? 'unknown', path: nixl.path ?? '' } : null;
}
