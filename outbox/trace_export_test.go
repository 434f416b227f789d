package outbox

// TraceHeaders is for tests.
var TraceHeaders = traceHeaders
