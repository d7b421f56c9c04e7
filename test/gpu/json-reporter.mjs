// A reporter of node:test: every test by file and name, as JSON, for bench/results.
//   node --test --test-reporter=./test/gpu/json-reporter.mjs --test-reporter-destination=FILE test/gpu/*.test.mjs
import { relative } from 'node:path';

const outcomeOf = (type, { skip, todo }) => {
  if (skip !== undefined && skip !== false) return 'skipped';
  if (todo !== undefined && todo !== false) return 'todo';
  return type === 'test:pass' ? 'passed' : 'failed';
};

/** The innermost reason: node:test wraps what a test threw. */
const messageOf = (error) => String(error?.cause?.message ?? error?.message ?? error);

export default async function* jsonReporter(source) {
  const tests = [];
  const notes = [];
  for await (const { type, data } of source) {
    // What a test says of its figures; comments of node:test itself are about the whole run.
    if (type === 'test:diagnostic' && data.nesting > 0) notes.push(data.message);
    if (type === 'test:stdout') notes.push(...data.message.split('\n').filter((line) => line.startsWith('# ')));
    if (type !== 'test:pass' && type !== 'test:fail') continue;
    // A file that throws before its first test fails under its own name, and must not vanish.
    const isFile = data.name === data.file || data.details?.type === 'suite';
    if (isFile && type === 'test:pass') continue;
    const outcome = outcomeOf(type, data);
    tests.push({
      file: data.file === undefined ? null : relative(process.cwd(), data.file),
      name: isFile ? 'the file as a whole' : data.name,
      outcome,
      durationMs: Math.round(data.details?.duration_ms ?? 0),
      ...(outcome === 'skipped' ? { why: String(data.skip) } : {}),
      ...(outcome === 'failed' ? { error: messageOf(data.details?.error) } : {}),
    });
  }
  const count = (outcome) => tests.filter((test) => test.outcome === outcome).length;
  const counts = { passed: count('passed'), failed: count('failed'), skipped: count('skipped') };
  yield `${JSON.stringify({ ...counts, tests, notes }, null, 1)}\n`;
}
