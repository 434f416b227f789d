package outbox

// AuxHandler handles the events of namespace aux.
// Give it the fields that its methods need, such as a pool; they run concurrently and share them.
type AuxHandler struct{}

var _ AuxHandlers = (*AuxHandler)(nil)
