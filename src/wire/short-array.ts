/**
 * Values of an array that are moved one by one; to have its bytes costs more than they do. V8 keeps an array of up to 16 within its heap until
 * somebody asks for its `buffer`; from then on it is memory outside, which the collector frees piece by piece in its pause: with a few of them in
 * each of thousands of requests that was more than half of it.
 */
export const SHORT_ARRAY = 64;
