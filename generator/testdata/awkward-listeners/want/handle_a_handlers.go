package outbox

// HandleAHandler handles the events of listener handle_a.
// Give it the fields that its methods need, such as a pool; they may run concurrently and share them. Where
// a method calls a package that enqueues, and so imports this one, let the field be an interface.
type HandleAHandler struct{}

var _ HandleAHandlers = (*HandleAHandler)(nil)
