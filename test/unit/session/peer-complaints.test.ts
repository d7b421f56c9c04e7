import { describe, expect, it } from 'vitest';
import { Counters } from '../../../src/session/counters.js';
import type { Peer } from '../../../src/session/peer.js';
import { PeerComplaints } from '../../../src/session/peer-complaints.js';
import { FakeClock } from '../../sim-lite/fake-clock.js';
import { speak, underWay } from './under-way.js';

function complaints() {
  const clock = new FakeClock(0);
  const counters = new Counters();
  const lines: string[] = [];
  const told = new PeerComplaints({ clock, counters, onWarning: (line) => void lines.push(line) });
  const peer = (name: string): Peer => ({ name }) as Peer;
  const say = (from: Peer, code = 'ERR_KVT_WIRE', text = 'what?'): void =>
    told.on(from, { type: 'ERROR', rid: 0n, code, text });
  return { clock, counters, lines, peer, say };
}

describe('ERROR frames of peers', () => {
  it('get one line a second from each', () => {
    const { clock, counters, lines, peer, say } = complaints();
    const [loud, quiet] = [peer('loud'), peer('quiet')];
    for (let i = 0; i < 5000; i += 1) say(loud);
    say(quiet);
    expect(lines).toEqual(['loud reports ERR_KVT_WIRE: what?', 'quiet reports ERR_KVT_WIRE: what?']);
    clock.advance(1000);
    say(loud);
    expect(lines).toHaveLength(3);
    expect(counters.snapshot()).toEqual({ 'peer_error:ERR_KVT_WIRE': 5002, peer_errors_unlogged: 4999 });
  });

  it('get sixteen lines a second from all together', () => {
    const { clock, lines, peer, say } = complaints();
    for (let i = 0; i < 1000; i += 1) say(peer(`peer ${i}`));
    expect(lines).toHaveLength(16);
    clock.advance(1000);
    say(peer('another'));
    expect(lines).toHaveLength(17);
    expect(lines.at(-1)).toBe('another reports ERR_KVT_WIRE: what? (984 more like it got no line)');
  });

  it('are counted by our codes: a peer cannot make up counters', () => {
    const { counters, peer, say } = complaints();
    for (const code of ['ERR_KVT_PROTOCOL', 'made up', '', 'constructor', '__proto__']) say(peer('p'), code);
    expect(counters.snapshot()).toEqual({ 'peer_error:ERR_KVT_PROTOCOL': 1, 'peer_error:other': 4 });
  });

  it('cannot write a second line, colours, or pages of text', () => {
    const { lines, peer, say } = complaints();
    say(peer('p'), 'ERR_KVT_WIRE', `one\r\ntwo\u001b[31m\u2028three${'x'.repeat(2000)}`);
    expect(lines[0]).toMatch(/^p reports ERR_KVT_WIRE: one two \[31m threex+…$/);
    expect(lines[0]?.length).toBeLessThan(600);
  });

  it('of a real peer: ten thousand make one line', async () => {
    const { world, context, generation } = await underWay();
    const before = context.warnings.length;
    for (let i = 0; i < 10_000; i += 1)
      speak(world, generation, context, { type: 'ERROR', rid: 0n, code: 'ERR_KVT_WIRE', text: `no ${i}` });
    await world.run(50);
    expect(context.warnings.slice(before)).toEqual([
      expect.stringMatching(/^generation rank 0 at \S+ reports ERR_KVT_WIRE: no 0$/),
    ]);
    expect(context.transceiver.stats().counters['peer_error:ERR_KVT_WIRE']).toBe(10_000);
  });
});
