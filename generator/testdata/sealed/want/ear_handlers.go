package events

// EarHandler handles the events of listener ear.
// Add the fields that its methods need, such as a pool. Methods may run concurrently and share them. If a
// method calls a package that enqueues events, and so imports this one, make the field an interface.
type EarHandler struct{}

var _ EarHandlers = (*EarHandler)(nil)
