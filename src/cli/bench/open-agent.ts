import { type AgentOptions, createAgent } from '../../agent/native-agent.js';
import { createPageContent } from '../../agent/native-page-content.js';
import type { PageContent } from '../../agent/page-content.js';
import type { TransferAgent } from '../../agent/transfer-agent.js';

export interface BenchAgent {
  readonly agent: TransferAgent;
  readonly content: PageContent;
}

/** @throws CapabilityError when the addon, or the library behind the agent, is not there */
export async function openAgent(
  kind: 'host' | 'nixl',
  linkGbps: number | null,
  name: string,
  more: Omit<AgentOptions, 'kind' | 'name' | 'linkGbps'> = {},
): Promise<BenchAgent> {
  const agent = await createAgent({ kind, name, ...(linkGbps === null ? {} : { linkGbps }), ...more });
  return { agent, content: createPageContent() };
}
