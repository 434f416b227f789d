package scalars

// TurnsHandler handles the events of namespace turns.
// Add the fields that its methods need, such as a pool. Methods may run concurrently and share them. If a
// method calls a package that enqueues events, and so imports this one, make the field an interface.
type TurnsHandler struct{}

var _ TurnsHandlers = (*TurnsHandler)(nil)
