// `npm run sim -- --mutants`: a build for each mutant, which hunts until it breaks a rule.
import { existsSync, readFileSync, writeFileSync } from 'node:fs';
import { eachOf, runLimited } from './processes.mjs';

/** A mutant that neither breaks a rule nor ends within so much processor time has hung, which is a catch of its own. */
const LIMIT_S = 120;
/** Around the table in a page that has one. */
const MARKS = ['<!-- mutants: made by npm run sim -- --mutants --markdown -->', '<!-- end of mutants -->'];

/**
 * @param options.lives each mutant gets so many request lives, after the scenarios
 * @param options.only parts of names; none = all of them
 * @param options.share of these, every `of`th from `share` on
 * @param options.jobs mutants at once
 * @param options.markdown a page whose table is renewed, or a file for the table alone
 * @returns the exit status: 0 = every mutant was caught
 */
export async function runMutants(kit, { lives, only, share: { share, of }, jobs, markdown }) {
  const named = kit.mutants.filter(({ name }) => only.length === 0 || only.some((part) => name.includes(part)));
  if (named.length === 0) throw new Error(`no mutant has ${JSON.stringify(only)} in its name`);
  const chosen = named.filter((_, index) => index % of === share);
  const lines = [];
  const say = (line) => {
    lines.push(line);
    process.stdout.write(`${line}\n`);
  };
  let missed = 0;
  say('| mutant | file | caught by | lives |\n|---|---|---|---:|');
  await eachOf(
    chosen,
    jobs,
    (mutant) => hunt(kit, mutant, lives),
    ({ name, file }, result) => {
      if (result.rule === null) missed += 1;
      say(`| ${name} | ${file.replace(/^src\//, '')} | ${result.rule ?? '**not caught**'} | ${result.lives} |`);
    },
  );
  const summary = `${chosen.length - missed} of ${chosen.length} mutants caught within ${lives} lives`;
  process.stdout.write(`\n${summary}\n`);
  if (markdown !== undefined) keep(markdown, [...lines, '', `${summary}, in one series.`].join('\n'));
  return missed === 0 ? 0 : 1;
}

/** Puts a table that was made elsewhere into a page. @returns the exit status */
export function keepTable(from, page) {
  const [begin, end] = MARKS;
  const [, table] = readFileSync(from, 'utf8').split(`${begin}\n`);
  if (table === undefined) throw new Error(`${from} has no table that --mutants --markdown made`);
  keep(page, table.slice(0, table.indexOf(`\n${end}`)));
  return 0;
}

function keep(path, table) {
  const [begin, end] = MARKS;
  const page = existsSync(path) ? readFileSync(path, 'utf8') : '';
  const [at, until] = [page.indexOf(begin), page.indexOf(end)];
  const text = `${begin}\n${table}\n${end}`;
  writeFileSync(path, at < 0 || until < at ? `${text}\n` : page.slice(0, at) + text + page.slice(until + end.length));
}

async function hunt(kit, mutant, lives) {
  const build = kit.build(mutant);
  try {
    const args = ['--scenarios', '--runs', String(lives), '--json'];
    const { status, output, spun } = await runLimited(build.cli, args, LIMIT_S);
    if (spun) return { rule: 'the run does not end', lives: '-' };
    const line = output.trim().split('\n').at(-1) ?? '';
    if (!line.startsWith('{')) return { rule: `the run dies (${status})`, lives: '-' };
    const result = JSON.parse(line);
    return { rule: result.violation?.rule ?? null, lives: result.lives };
  } finally {
    build.remove();
  }
}
