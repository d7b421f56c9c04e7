import { reportPage } from './page.js';
import { writeInto } from './report-folder.js';
import { type AnyOutput, requestRows } from './report-output.js';
import { timelineEvents } from './timeline-events.js';

/** Files of a report. */
export interface WrittenReport {
  readonly page: string;
}

/**
 * Writes `report.html`, `figures.json` and, for requests, `timeline.json`.
 * @throws ReportWriteError
 */
export function writeReport(folder: string, output: AnyOutput): WrittenReport {
  writeInto(folder, 'figures.json', `${JSON.stringify(output)}\n`);
  if (requestRows(output).length > 0) writeInto(folder, 'timeline.json', `${JSON.stringify(timelineEvents(output))}\n`);
  return { page: writeInto(folder, 'report.html', reportPage(output)) };
}
