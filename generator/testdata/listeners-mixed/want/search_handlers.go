package shop

// SearchIndexHandler handles the events of listener search.
// Give it the fields that its methods need, such as a pool; they may run concurrently and share them. Where
// a method calls a package that enqueues, and so imports this one, let the field be an interface.
type SearchIndexHandler struct{}

var _ SearchIndexHandlers = (*SearchIndexHandler)(nil)
