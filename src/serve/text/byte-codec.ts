import type { ChatMessage, ChatRole, TextCodec, TokenDecoder } from './text-codec.js';

/** Ids above the bytes. One that is sampled ends the answer. */
const END = 256;
const ROLE_TOKENS: Readonly<Record<ChatRole, number>> = { system: 257, user: 258, assistant: 259, tool: 260 };

/** Bytes, the end of a message, and who speaks. */
export const BYTE_VOCABULARY = 261;

/**
 * Role: one token for each byte of UTF-8, and a few that no text can contain.
 * A chat is, for each message, the token of its role, the bytes of its content and the token 256; then the token of the assistant. What a user
 * writes can therefore never pass for another role.
 */
export class ByteCodec implements TextCodec {
  readonly endTokens: ReadonlySet<number> = new Set([END, ...Object.values(ROLE_TOKENS)]);

  encode(text: string): Uint32Array {
    return Uint32Array.from(Buffer.from(text, 'utf8'));
  }

  encodeChat(messages: readonly ChatMessage[]): Uint32Array {
    const parts = messages.map(({ content }) => Buffer.from(content, 'utf8'));
    const tokens = new Uint32Array(parts.reduce((sum, bytes) => sum + bytes.length + 2, 1));
    let at = 0;
    for (const [index, bytes] of parts.entries()) {
      tokens[at] = ROLE_TOKENS[(messages[index] as ChatMessage).role];
      tokens.set(bytes, at + 1);
      at += bytes.length + 2;
      tokens[at - 1] = END;
    }
    tokens[at] = ROLE_TOKENS.assistant;
    return tokens;
  }

  decoder(): TokenDecoder {
    // Bytes that are no UTF-8 become U+FFFD, as in any text; a byte order mark is a character like others.
    const decoder = new TextDecoder('utf-8', { ignoreBOM: true });
    return {
      push: (token) => (token < END ? decoder.decode(Uint8Array.of(token), { stream: true }) : ''),
      end: () => decoder.decode(),
    };
  }
}
