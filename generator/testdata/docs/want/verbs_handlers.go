package docs

// VerbsHandler handles the events of namespace verbs.
// Give it the fields that its methods need, such as a pool; they run concurrently and share them.
type VerbsHandler struct{}

var _ VerbsHandlers = (*VerbsHandler)(nil)
