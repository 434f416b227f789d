package events

// OtherHandler handles the events of namespace other.
// Give it the fields that its methods need, such as a pool; they may run concurrently and share them. Where
// a method calls a package that enqueues, and so imports this one, let the field be an interface.
type OtherHandler struct{}

var _ OtherHandlers = (*OtherHandler)(nil)
