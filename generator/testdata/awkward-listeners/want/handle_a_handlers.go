package outbox

// HandleAHandler handles the events of listener handle_a.
// Add the fields that its methods need, such as a pool. Methods may run concurrently and share them. If a
// method calls a package that enqueues events, and so imports this one, make the field an interface.
type HandleAHandler struct{}

var _ HandleAHandlers = (*HandleAHandler)(nil)
