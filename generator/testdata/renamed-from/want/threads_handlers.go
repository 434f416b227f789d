package events

// ThreadsHandler handles the events of namespace threads.
// Add the fields that its methods need, such as a pool. Methods may run concurrently and share them. If a
// method calls a package that enqueues events, and so imports this one, make the field an interface.
type ThreadsHandler struct{}

var _ ThreadsHandlers = (*ThreadsHandler)(nil)
