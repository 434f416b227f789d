package events

// ReaderHandler handles the events of listener reader.
// Add the fields that its methods need, such as a pool. Methods may run concurrently and share them. If a
// method calls a package that enqueues events, and so imports this one, make the field an interface.
type ReaderHandler struct{}

var _ ReaderHandlers = (*ReaderHandler)(nil)
