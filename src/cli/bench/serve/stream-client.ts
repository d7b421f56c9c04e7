import { request as httpRequest, type IncomingMessage } from 'node:http';
import type { SoakQuestion } from './soak-questions.js';

/** How one request ended for its client. */
export type ClientOutcome =
  | { readonly kind: 'right'; readonly tokens: number }
  /** The client left, as it meant to; what it had seen was right. */
  | { readonly kind: 'left' }
  /** A clear error; what came before was right. */
  | { readonly kind: 'error'; readonly code: string; readonly afterTokens: number }
  | { readonly kind: 'wrong'; readonly what: string };

interface Chunk {
  readonly choices?: readonly { readonly token_ids?: readonly number[]; readonly finish_reason?: string | null }[];
  readonly usage?: { readonly completion_tokens: number } | null;
  readonly error?: { readonly message: string; readonly code: string | null };
}

/** A client that hears nothing for this long was forgotten. */
const SILENCE_LIMIT_MS = 60_000;

/** One streaming request over a connection of its own. @param leaveAfter tokens after which the client leaves; null: never */
export function askOnce(port: number, question: SoakQuestion, leaveAfter: number | null): Promise<ClientOutcome> {
  return new Promise((resolve) => {
    const body = JSON.stringify(question.body);
    const request = httpRequest({
      host: '127.0.0.1',
      port,
      path: '/v1/completions',
      method: 'POST',
      agent: false,
      timeout: SILENCE_LIMIT_MS,
      headers: { 'content-type': 'application/json', 'content-length': Buffer.byteLength(body) },
    });
    let ended = false;
    const end = (outcome: ClientOutcome): void => {
      if (ended) return;
      ended = true;
      request.destroy();
      resolve(outcome);
    };
    request.on('timeout', () => end({ kind: 'wrong', what: `nothing came for ${SILENCE_LIMIT_MS / 1000} s` }));
    request.on('error', (error) => end({ kind: 'wrong', what: `the connection broke: ${error.message}` }));
    request.on('response', (response) => {
      response.setEncoding('utf8');
      response.on('error', (error) => end({ kind: 'wrong', what: `the answer broke off: ${error.message}` }));
      if (response.statusCode === 200) new AnswerCheck(question, leaveAfter, end).read(response);
      else readError(response, end);
    });
    request.end(body);
    if (leaveAfter === 0) setTimeout(() => end({ kind: 'left' }), 5);
  });
}

function readError(response: IncomingMessage, end: (outcome: ClientOutcome) => void): void {
  let text = '';
  response.on('data', (data: string) => (text += data));
  response.on('end', () => {
    try {
      const { error } = JSON.parse(text) as Chunk;
      if (typeof error?.message !== 'string') throw new SyntaxError('no message');
      end({ kind: 'error', code: `${response.statusCode} ${error.code}`, afterTokens: 0 });
    } catch {
      // Whatever it is, it is not what an API answers.
      end({ kind: 'wrong', what: `status ${response.statusCode} without an error body` });
    }
  });
}

/** Compares a stream with the right answer while it comes. */
class AnswerCheck {
  readonly #question: SoakQuestion;
  readonly #leaveAfter: number | null;
  readonly #end: (outcome: ClientOutcome) => void;
  #text = '';
  #seen = 0;
  #finish: string | null = null;
  #counted = -1;

  constructor(question: SoakQuestion, leaveAfter: number | null, end: (outcome: ClientOutcome) => void) {
    this.#question = question;
    this.#leaveAfter = leaveAfter;
    this.#end = end;
  }

  read(response: IncomingMessage): void {
    response.on('data', (data: string) => {
      this.#text += data;
      const events = this.#text.split('\n\n');
      this.#text = events.pop() ?? '';
      for (const event of events) this.#onEvent(event.replace(/^data: /, ''));
    });
    response.on('end', () =>
      this.#end({ kind: 'wrong', what: `the stream ended after ${this.#seen} tokens without a word` }),
    );
  }

  #onEvent(data: string): void {
    if (data === '[DONE]') {
      this.#onDone();
      return;
    }
    const chunk = JSON.parse(data) as Chunk;
    if (chunk.error !== undefined) {
      this.#end({ kind: 'error', code: `stream ${chunk.error.code}`, afterTokens: this.#seen });
      return;
    }
    this.#counted = chunk.usage?.completion_tokens ?? this.#counted;
    for (const { token_ids = [], finish_reason } of chunk.choices ?? []) {
      this.#finish = finish_reason ?? this.#finish;
      for (const token of token_ids) {
        const right = this.#question.answer[this.#seen];
        if (token !== right) {
          this.#end({ kind: 'wrong', what: `token ${this.#seen} is ${token}, not ${right}` });
          return;
        }
        this.#seen += 1;
      }
    }
    if (this.#leaveAfter !== null && this.#seen >= this.#leaveAfter) this.#end({ kind: 'left' });
  }

  #onDone(): void {
    const { length } = this.#question.answer;
    if (this.#seen !== length || this.#counted !== length || this.#finish === null)
      this.#end({
        kind: 'wrong',
        what: `${this.#seen} tokens came, ${this.#counted} are counted, ${length} are right; it ended with ${this.#finish}`,
      });
    else this.#end({ kind: 'right', tokens: length });
  }
}
