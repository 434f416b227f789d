package alltypes

// CatalogHandler handles the events of namespace catalog.
// Give it the fields that its methods need, such as a pool; they may run concurrently and share them. Where
// a method calls a package that enqueues, and so imports this one, let the field be an interface.
type CatalogHandler struct{}

var _ CatalogHandlers = (*CatalogHandler)(nil)
