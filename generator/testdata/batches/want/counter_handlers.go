package events

// CounterHandler handles the events of listener counter.
// Add the fields that its methods need, such as a pool. Methods may run concurrently and share them. If a
// method calls a package that enqueues events, and so imports this one, make the field an interface.
type CounterHandler struct{}

var _ CounterHandlers = (*CounterHandler)(nil)
