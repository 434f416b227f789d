package docs

// NounsHandler handles the events of namespace nouns.
// Give it the fields that its methods need, such as a pool; they may run concurrently and share them. Where
// a method calls a package that enqueues, and so imports this one, let the field be an interface.
type NounsHandler struct{}

var _ NounsHandlers = (*NounsHandler)(nil)
