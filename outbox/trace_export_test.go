package outbox

// TraceHeaders is for tests.
var TraceHeaders = traceHeaders

// Filled returns what an enqueue encodes.
func Filled(p any) any {
	made, _ := filled(p)
	return made
}
