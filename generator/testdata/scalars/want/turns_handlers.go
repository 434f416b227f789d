package scalars

// TurnsHandler handles the events of namespace turns.
// Give it the fields that its methods need, such as a pool; they may run concurrently and share them. Where
// a method calls a package that enqueues, and so imports this one, let the field be an interface.
type TurnsHandler struct{}

var _ TurnsHandlers = (*TurnsHandler)(nil)
