package outbox

// AWindowsTestHandler handles the events of listener a_windows_test.
// Give it the fields that its methods need, such as a pool; they may run concurrently and share them. Where
// a method calls a package that enqueues, and so imports this one, let the field be an interface.
type AWindowsTestHandler struct{}

var _ AWindowsTestHandlers = (*AWindowsTestHandler)(nil)
