// Loaded into the front and its workers before anything else (`node --import`): a tracer provider that appends each span to SPANS_FILE.
import { appendFileSync } from 'node:fs';
import { trace } from '@opentelemetry/api';
import { BasicTracerProvider, SimpleSpanProcessor } from '@opentelemetry/sdk-trace-base';

const exporter = {
  export(spans, done) {
    for (const span of spans) {
      const { traceId, spanId } = span.spanContext();
      const parent = span.parentSpanContext?.spanId ?? null;
      appendFileSync(process.env.SPANS_FILE, `${JSON.stringify({ name: span.name, traceId, spanId, parent })}\n`);
    }
    done({ code: 0 });
  },
  async shutdown() {},
};
trace.setGlobalTracerProvider(new BasicTracerProvider({ spanProcessors: [new SimpleSpanProcessor(exporter)] }));
