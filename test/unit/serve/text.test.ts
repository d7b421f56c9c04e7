import { describe, expect, it } from 'vitest';
import { ByteCodec } from '../../../src/serve/text/byte-codec.js';
import { StopMatcher } from '../../../src/serve/text/stop-matcher.js';

const codec = new ByteCodec();

describe('byte codec', () => {
  it('has one token for each byte', () => {
    expect([...codec.encode('aé€')]).toEqual([0x61, 0xc3, 0xa9, 0xe2, 0x82, 0xac]);
    expect(codec.encode('')).toHaveLength(0);
  });

  it('gives a character when its last byte came', () => {
    const decoder = codec.decoder();
    expect([0xe2, 0x82, 0xac, 0x61].map((token) => decoder.push(token))).toEqual(['', '', '€', 'a']);
    expect(decoder.end()).toBe('');
  });

  it('shows what is no UTF-8 as U+FFFD, an incomplete end too', () => {
    const decoder = codec.decoder();
    expect([0xff, 0x61, 0xe2].map((token) => decoder.push(token)).join('')).toBe('\ufffda');
    expect(decoder.end()).toBe('\ufffd');
  });

  it('has no text for tokens above the bytes', () => {
    const decoder = codec.decoder();
    expect([256, 257, 260].map((token) => decoder.push(token)).join('')).toBe('');
    expect([...codec.endTokens]).toEqual([256, 257, 258, 259, 260]);
  });

  it('writes a chat as role, bytes and end for each message, then the role of the assistant', () => {
    const messages = [
      { role: 'system', content: 'é' },
      { role: 'user', content: '' },
      { role: 'assistant', content: 'a' },
      { role: 'tool', content: 'b' },
    ] as const;
    expect([...codec.encodeChat(messages)]).toEqual([
      257, 0xc3, 0xa9, 256, 258, 256, 259, 0x61, 256, 260, 0x62, 256, 259,
    ]);
  });

  it('lets no text pass for another role', () => {
    const roles = [...codec.encodeChat([{ role: 'user', content: '\u0101\u0102 <|system|>' }])].filter(
      (token) => token > 255,
    );
    expect(roles).toEqual([258, 256, 259]);
  });
});

describe('stop matcher', () => {
  const run = (stops: readonly string[], pieces: readonly string[]) => {
    const matcher = new StopMatcher(stops);
    const out = pieces.map((piece) => matcher.push(piece));
    return { out, stopped: matcher.stopped, end: matcher.end() };
  };

  it.each<[readonly string[], readonly string[], readonly string[], boolean, string]>([
    [[], ['a', 'b'], ['a', 'b'], false, ''],
    [['END'], ['xEN', 'Dy'], ['x', ''], true, ''],
    [['END'], ['E', 'N', 'D'], ['', '', ''], true, ''],
    [['END'], ['xE', 'Nx'], ['x', 'ENx'], false, ''],
    [['END'], ['xEN'], ['x'], false, 'EN'],
    [['aab'], ['aa', 'ab', 'c'], ['', 'a', ''], true, ''],
    [['bc', 'abcd'], ['a', 'b', 'c'], ['', '', 'a'], true, ''],
    [['yy', 'x'], ['ayxyy'], ['ay'], true, ''],
    [['\n\n'], ['a\n', 'b\n', '\nc'], ['a', '\nb', ''], true, ''],
  ])('%j over %j', (stops, pieces, out, stopped, end) => {
    expect(run(stops, pieces)).toEqual({ out, stopped, end });
  });

  it('gives the same text in whatever pieces it comes', () => {
    const text = 'abababcababd';
    for (const stops of [['abd'], ['ababc'], ['x'], ['bab', 'cab']]) {
      const whole = run(stops, [text]);
      const single = run(stops, [...text]);
      expect(single.out.join('') + single.end).toBe(whole.out.join('') + whole.end);
      expect(single.stopped).toBe(whole.stopped);
    }
  });
});
