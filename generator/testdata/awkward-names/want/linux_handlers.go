package outbox

// LinuxHandler handles the events of namespace linux.
// Give it the fields that its methods need, such as a pool; they run concurrently and share them.
type LinuxHandler struct{}

var _ LinuxHandlers = (*LinuxHandler)(nil)
