package events

// EyesHandler handles the events of listener eyes.
// Give it the fields that its methods need, such as a pool; they may run concurrently and share them. Where
// a method calls a package that enqueues, and so imports this one, let the field be an interface.
type EyesHandler struct{}

var _ EyesHandlers = (*EyesHandler)(nil)
