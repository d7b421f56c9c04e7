import { checkCase, Met } from './check-case.js';

// One process of a series: checks the ranges of cases that it is sent, `[from, to)`, until nobody sends any.
process.on('message', ({ from, to }: { readonly from: number; readonly to: number }) => {
  void checkRange(from, to).then((report) => process.send?.(report));
});

async function checkRange(from: number, to: number): Promise<object> {
  const met = new Met();
  const failures: { readonly seed: number; readonly text: string }[] = [];
  for (let seed = from; seed < to; seed++) {
    try {
      await checkCase(seed, met);
    } catch (error) {
      failures.push({ seed, text: error instanceof Error ? error.message : String(error) });
    }
  }
  const { user, system } = process.cpuUsage();
  return { met: met.counts, failures, cpuUs: user + system };
}
