// The tiny engine, whose generation servers stand still while the file `gate` is there: what a test does in the middle of an answer is done then,
// however long the test takes for it.
import { existsSync } from 'node:fs';
import { setTimeout as sleep } from 'node:timers/promises';
import { tinyServeEngine } from '../../../dist/serve/engine/tiny-serve-engine.js';

/** Tokens that a stream has by then. */
const FREE_TOKENS = 4;

export default function createEngine({ gate, ...settings }, section) {
  const engine = tinyServeEngine(settings, section);
  return {
    ...engine,
    ranks: (wanted) =>
      engine.ranks(wanted).map((rank) => ({
        ...rank,
        createEngine(parts) {
          const made = rank.createEngine(parts);
          const forward = made.forward.bind(made);
          const isHeld = ({ generation }) =>
            generation.some(({ request }) => request.outputTokens.length >= FREE_TOKENS) && existsSync(gate);
          made.forward = async (batch) => {
            while (isHeld(batch)) await sleep(5);
            return forward(batch);
          };
          return made;
        },
      })),
  };
}
