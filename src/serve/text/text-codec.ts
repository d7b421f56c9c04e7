/** One message of a chat. */
export interface ChatMessage {
  readonly role: ChatRole;
  readonly content: string;
}

/** Who speaks in a chat; `developer` is an alias of `system` in requests. */
export type ChatRole = 'system' | 'user' | 'assistant' | 'tool';

/** Turns one answer's tokens into text, in order. */
export interface TokenDecoder {
  /** What the token adds; '' while a character is incomplete. */
  push(token: number): string;
  /** What is left at the end. */
  end(): string;
}

/** How text becomes tokens and back. The front process uses it; workers see tokens alone. */
export interface TextCodec {
  encode(text: string): Uint32Array;
  /** A whole conversation, up to where the assistant is to speak. */
  encodeChat(messages: readonly ChatMessage[]): Uint32Array;
  decoder(): TokenDecoder;
  /** Tokens that end an answer; they are counted and give no text. */
  readonly endTokens: ReadonlySet<number>;
}
