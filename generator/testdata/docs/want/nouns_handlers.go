package docs

// NounsHandler handles the events of namespace nouns.
// Give it the fields that its methods need, such as a pool; they run concurrently and share them.
type NounsHandler struct{}

var _ NounsHandlers = (*NounsHandler)(nil)
