import type { AnswerEnd, AnswerPiece } from './answer-stream.js';

/** What one endpoint's answers look like. */
export interface AnswerShape {
  readonly idPrefix: string;
  /** The whole answer. */
  whole(head: AnswerHead, piece: AnswerPiece, end: AnswerEnd): unknown;
  /** Comes before the first piece of a stream; null: nothing. */
  opening(head: AnswerHead): unknown;
  part(head: AnswerHead, piece: AnswerPiece): unknown;
  /** The last part, which says why it ended. */
  closing(head: AnswerHead, end: AnswerEnd): unknown;
  /** After the last part, when it was asked for. */
  usage(head: AnswerHead, end: AnswerEnd): unknown;
}

export interface AnswerHead {
  readonly id: string;
  /** Unix time, seconds. */
  readonly created: number;
  readonly model: string;
  readonly promptTokens: number;
  readonly includeUsage: boolean;
  readonly returnTokenIds: boolean;
}

export const COMPLETION: AnswerShape = {
  idPrefix: 'cmpl-',
  whole: (head, piece, end) => ({
    ...headOf(head, 'text_completion'),
    choices: [{ ...textChoice(head, piece), finish_reason: end.finishReason }],
    usage: usageOf(head, end),
  }),
  opening: () => null,
  part: (head, piece) => streamed(head, 'text_completion', [textChoice(head, piece)]),
  closing: (head, { finishReason }) =>
    streamed(head, 'text_completion', [{ index: 0, text: '', logprobs: null, finish_reason: finishReason }]),
  usage: (head, end) => ({ ...headOf(head, 'text_completion'), choices: [], usage: usageOf(head, end) }),
};

export const CHAT: AnswerShape = {
  idPrefix: 'chatcmpl-',
  whole: (head, { text, tokens }, end) => ({
    ...headOf(head, 'chat.completion'),
    choices: [
      {
        index: 0,
        message: { role: 'assistant', content: text, refusal: null },
        logprobs: null,
        finish_reason: end.finishReason,
        ...tokenIds(head, tokens),
      },
    ],
    usage: usageOf(head, end),
  }),
  opening: (head) => chatPart(head, { role: 'assistant', content: '', refusal: null }, null),
  part: (head, { text, tokens }) => chatPart(head, { content: text }, null, tokens),
  closing: (head, { finishReason }) => chatPart(head, {}, finishReason),
  usage: (head, end) => ({ ...headOf(head, 'chat.completion.chunk'), choices: [], usage: usageOf(head, end) }),
};

function chatPart(head: AnswerHead, delta: unknown, finishReason: string | null, tokens: readonly number[] = []) {
  const choice = { index: 0, delta, logprobs: null, finish_reason: finishReason };
  return streamed(head, 'chat.completion.chunk', [{ ...choice, ...(tokens.length > 0 ? tokenIds(head, tokens) : {}) }]);
}

function textChoice(head: AnswerHead, { text, tokens }: AnswerPiece) {
  return { index: 0, text, logprobs: null, finish_reason: null, ...tokenIds(head, tokens) };
}

function tokenIds({ returnTokenIds }: AnswerHead, tokens: readonly number[]) {
  return returnTokenIds ? { token_ids: tokens } : {};
}

function headOf({ id, created, model }: AnswerHead, object: string) {
  return { id, object, created, model };
}

function streamed(head: AnswerHead, object: string, choices: readonly unknown[]) {
  return { ...headOf(head, object), choices, ...(head.includeUsage ? { usage: null } : {}) };
}

function usageOf({ promptTokens }: AnswerHead, { completionTokens, cachedTokens }: AnswerEnd) {
  return {
    prompt_tokens: promptTokens,
    completion_tokens: completionTokens,
    total_tokens: promptTokens + completionTokens,
    prompt_tokens_details: { cached_tokens: cachedTokens },
  };
}
