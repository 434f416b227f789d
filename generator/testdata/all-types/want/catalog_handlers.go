package alltypes

// CatalogHandler handles the events of namespace catalog.
// Give it the fields that its methods need, such as a pool; they run concurrently and share them.
type CatalogHandler struct{}

var _ CatalogHandlers = (*CatalogHandler)(nil)
