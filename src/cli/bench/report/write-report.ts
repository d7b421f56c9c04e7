import type { BenchOutput } from '../output-contract.js';
import { writeInto } from './report-folder.js';

export interface WrittenReport {
  readonly page: string;
}

export function writeReport(folder: string, output: BenchOutput<object>): WrittenReport {
  return { page: writeInto(folder, 'figures.json', JSON.stringify(output)) };
}
