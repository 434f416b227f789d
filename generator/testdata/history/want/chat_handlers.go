package events

// ChatHandler handles the events of namespace chat.
// Add the fields that its methods need, such as a pool. Methods may run concurrently and share them. If a
// method calls a package that enqueues events, and so imports this one, make the field an interface.
type ChatHandler struct{}

var _ ChatHandlers = (*ChatHandler)(nil)
