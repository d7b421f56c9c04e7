/** The run is over and its figures are printed, but the report could not be saved. */
export class ReportWriteError extends Error {
  override readonly name = 'ReportWriteError';
}
