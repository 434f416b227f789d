package docs

// WordyHandler handles the events of listener wordy.
// Add the fields that its methods need, such as a pool. Methods may run concurrently and share them. If a
// method calls a package that enqueues events, and so imports this one, make the field an interface.
type WordyHandler struct{}

var _ WordyHandlers = (*WordyHandler)(nil)
