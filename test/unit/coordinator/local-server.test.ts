import { describe, expect, it } from 'vitest';
import type { ServerResult } from '../../../src/coordinator/disagg-server.js';
import { LocalServer } from '../../../src/coordinator/local-server.js';
import { ArgumentError, ResourceError } from '../../../src/errors.js';
import type { DisaggregatedParams } from '../../../src/executor/request.js';
import { harness, PIPELINED, params, prompt } from '../executor/harness.js';

function setup() {
  const h = harness({ chunkTokens: 8 });
  const notices: string[] = [];
  const server = new LocalServer({
    name: 'context-0',
    executor: h.executor,
    infoEndpoint: 'tcp://127.0.0.1:1',
    transferPolicy: PIPELINED,
    onNotice: (message) => notices.push(message),
  });
  return { h, server, notices };
}

const REQUEST = { promptTokens: prompt(12), maxTokens: 2, transferPolicy: null };
const CONTEXT_FIRST = params('context_only', { scheduleStyle: 'context_first' });

describe('LocalServer', () => {
  it('runs a request with the server’s policy and says how it ended', async () => {
    const { h, server } = setup();
    const tokens: number[] = [];
    const call = server.submit(
      { ...REQUEST, params: params('context_and_generation') },
      { onToken: (token, index) => tokens.push(token, index) },
    );
    await h.clock.turn(40);
    expect(await call.done).toEqual({
      outcome: 'completed',
      outputTokens: [100, 101],
      error: null,
      usage: { promptTokens: 12, cachedTokens: 0 },
    });
    expect(tokens).toEqual([100, 0, 101, 1]);
    server.submit({ ...REQUEST, params: params('context_only') }, {});
    await h.clock.turn(40);
    expect(h.take().filter((line) => line.startsWith('send'))).toEqual(['send 2 [0,8)', 'send 2 [8,12)']);
  });

  it('refuses an id that another request has, until that one has ended', async () => {
    const { h, server } = setup();
    const request = { ...REQUEST, params: params('context_and_generation', { disaggRequestId: 77n }) };
    const call = server.submit(request, {});
    const again = (): unknown => server.submit(request, {});
    expect(again).toThrow(ResourceError);
    expect(again).toThrow(/the id 77; .* differ in node_id or process/);
    await h.clock.turn(40);
    expect(await call.done).toMatchObject({ outcome: 'completed' });
    // Refused for another reason: the id is not held.
    const wrong = { ...request, maxTokens: 0 };
    expect(() => server.submit(wrong, {})).toThrow(ArgumentError);
    await h.clock.turn(1);
    expect(again).not.toThrow();
  });

  it('ends a request at a token that stops it', async () => {
    const { h, server } = setup();
    const request = { ...REQUEST, maxTokens: 9, params: params('context_and_generation'), stopTokens: [102] };
    const call = server.submit(request, {});
    await h.clock.turn(60);
    expect(await call.done).toMatchObject({ outcome: 'completed', outputTokens: [100, 101, 102] });
  });

  it('sends context-first requests whole, says so once, and hands over the answer', async () => {
    const { h, server, notices } = setup();
    const answers: DisaggregatedParams[] = [];
    for (const disaggRequestId of [1n, 2n]) {
      server.submit(
        { ...REQUEST, params: { ...CONTEXT_FIRST, disaggRequestId } },
        { onContextAnswer: (answer) => answers.push(answer) },
      );
    }
    await h.clock.turn(40);
    expect(h.take().filter((line) => line.startsWith('send'))).toEqual(['send 1 [8,12)', 'send 2 [8,12)']);
    expect(notices).toHaveLength(1);
    expect(notices[0]).toContain("use schedule style 'generation_first'");
    expect(answers.map((answer) => answer.firstGenTokens)).toEqual([[100], [200]]);
  });

  it('throws what the executor refuses', () => {
    const { server } = setup();
    expect(() => server.submit({ ...REQUEST, params: CONTEXT_FIRST, transferPolicy: PIPELINED }, {})).toThrow(
      ArgumentError,
    );
    expect(() => server.submit({ ...REQUEST, maxTokens: 0, params: CONTEXT_FIRST }, {})).toThrow(ArgumentError);
  });

  it('cancels', async () => {
    const { h, server } = setup();
    const call = server.submit({ ...REQUEST, params: params('context_only') }, {});
    call.cancel();
    let result: ServerResult | null = null;
    void call.done.then((value) => {
      result = value;
    });
    await h.clock.turn(20);
    expect(result).toEqual({
      outcome: 'cancelled',
      outputTokens: [],
      error: null,
      usage: { promptTokens: 12, cachedTokens: 0 },
    });
    call.cancel();
  });
});
