import { stripeTokens } from '../shape/side-shape.js';
import type { TtftCluster } from './ttft-cluster.js';
import type { ServersPlan } from './ttft-plan.js';
import { randomRequest } from './workload.js';

/** Numbers of warm-up requests: no measured request has them. */
const FIRST_NUMBER = 2 ** 31;

/** The first requests pay for the handshake and for cold code; they are not reported. Every context parallel rank has a block of it. */
export async function warmUp(
  cluster: Pick<TtftCluster, 'prepare' | 'measure'>,
  { options, shapes, pools }: Pick<ServersPlan, 'options' | 'shapes' | 'pools'>,
  requests: number,
): Promise<void> {
  const stripes = [shapes.context, shapes.generation].map(stripeTokens);
  const room = [pools.context, pools.generation].map(({ slots }, side) => slots.blocks * (stripes[side] as number));
  const tokens = Math.min(2 * Math.max(...stripes), ...room);
  for (let request = 0; request < requests; request++) {
    await cluster.measure(
      await cluster.prepare(randomRequest(options, 'pipelined', tokens, 0, FIRST_NUMBER + request)),
    );
  }
}
